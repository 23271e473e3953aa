// The collectives on one MPI communicator, each run to its end in the calling thread.
//
// Memory that MPI accesses in addition to the caller's data is in members: an abandoned call may still be under way,
// and then this object is never destroyed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/place.h"
#include "src/comm/mpi/library/mpi_api.h"

namespace lockstep::mpi {

class Collectives {
 public:
  // `trouble` throws if this rank's group has ended; it is called while waiting.
  Collectives(const Place& place, MPI_Comm communicator, std::size_t most, std::function<void()> trouble);

  // A rank's description of its call, for the message of a mismatch.
  struct Statement {
    Signature signature;
    PassState pass;
    char purpose[56] = {};
  };

  // Compares the signatures of all ranks, then moves the data. Throws MismatchError, the same on all ranks, or
  // TimeoutError at the operation's deadline.
  void execute(const Operation& operation);

 private:
  void compare(const Operation& operation);
  [[noreturn]] void explain_mismatch(const Operation& operation);
  void move(const Operation& operation);
  void reduce(const Operation& operation);
  void reduce_piece(const Operation& operation, const std::byte* send, std::byte* receive, std::size_t count);
  void call_reduce(const Operation& operation, const void* send, void* receive, std::size_t count, MPI_Datatype type);
  void broadcast(const Operation& operation);
  void all_gather_v(const Operation& operation);
  void all_to_all_v(const Operation& operation);
  void must_fit(const Operation& operation, std::size_t elements) const;
  // Starts a non-blocking call and waits for it.
  void finish(const Operation& operation, const char* call, const std::function<int(MPI_Request*)>& start);
  int ranks() const { return place_.world_size; }
  bool is_root(const Operation& operation) const { return operation.signature.root == place_.rank; }

  struct IntParts {  // lengths and start offsets of the parts, in elements
    std::vector<int> counts, offsets;
    IntParts& operator=(const std::vector<std::size_t>& lengths);
  };

  Place place_;
  MPI_Comm communicator_;
  std::size_t most_;
  std::function<void()> trouble_;
  std::chrono::steady_clock::time_point deadline_{};
  std::vector<float> wide_send_, wide_receive_;  // for types that MPI does not have
  std::vector<std::byte> scratch_;  // for calls that MPI does not support in place: all_to_all, reduce_scatter
  std::vector<std::uint64_t> words_, all_words_;
  Statement statement_;
  std::vector<Statement> statements_;
  IntParts out_, in_;
};

}  // namespace lockstep::mpi
