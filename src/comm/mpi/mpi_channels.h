// Byte streams between the ranks of an MPI communicator, in chunks; messages travel on them.
//
// MPI's own matching does not compare types, and a send without a matching receive may block. Streams give the messages
// of all backends the same semantics, at the cost of a copy into and out of the chunks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/place.h"
#include "src/comm/call/byte_channels.h"
#include "src/comm/mpi/library/mpi_api.h"

namespace lockstep::mpi {

class Channels : public ByteChannels {
 public:
  // `group_error` is the group's, and outlives this object.
  Channels(const Place& place, MPI_Comm communicator, LocalGroupError& group_error);

  std::size_t write(int peer, const std::byte* data, std::size_t bytes) noexcept override;
  std::size_t read(int peer, std::byte* data, std::size_t bytes) override;
  bool has_gone(int) override { return false; }  // MPI does not report it; a rank that leaves sends a goodbye
  void wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept override;
  void interrupt() noexcept override;
  void throw_if_over(const std::function<std::string()>& doing) override;
  // MPI cannot notify the others: they time out at their deadlines.
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text, const std::string& doing) override;
  std::string name_of_rank(int rank) const override;

  // Whether MPI holds no chunk; only then may this object be destroyed.
  bool is_idle() noexcept;

 private:
  static constexpr std::size_t kChunkBytes = 64 * 1024, kChunks = 4;
  struct Chunk {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Peer {
    std::array<Chunk, kChunks> out;  // used in turn
    std::size_t next_out = 0;
    Chunk in;
    std::size_t in_begin = 0, in_end = 0;  // the received, unread range of `in`
  };
  // Call it with MPI's lock held. Returns true if the request has completed. Keeps an error for the next read().
  bool is_over(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) noexcept;
  bool fill(int peer);

  Place place_;
  MPI_Comm communicator_;
  LocalGroupError& group_error_;
  std::vector<Peer> peers_;
  int failure_ = MPI_SUCCESS;
  std::atomic<std::chrono::steady_clock::time_point> moved_{},
      waited_{};  // last time that bytes moved, and that a thread waited
  std::mutex mutex_;
  std::condition_variable interrupted_changed_;
  bool interrupted_ = false;
};

}  // namespace lockstep::mpi
