// Streams of bytes between the ranks of one communicator of MPI, in chunks: what messages travel on.
//
// MPI's own matching knows no types, and a send that no receive has asked for yet may block. Streams give the messages
// of all backends one meaning, for the price of a copy into and out of the chunks.
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
  // `group_error` is the group's, and outlives this.
  Channels(const Place& place, MPI_Comm communicator, LocalGroupError& group_error);

  std::size_t write(int peer, const std::byte* data, std::size_t bytes) noexcept override;
  std::size_t read(int peer, std::byte* data, std::size_t bytes) override;
  bool has_gone(int) override { return false; }  // MPI does not say; a rank that leaves in order says goodbye
  void wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept override;
  void interrupt() noexcept override;
  void throw_if_over(const std::function<std::string()>& doing) override;
  // MPI cannot tell the others: they hear of it at their deadlines.
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text, const std::string& doing) override;
  std::string name_of_rank(int rank) const override;

  // MPI has no chunk in its hands: only then may this object go.
  bool is_idle() noexcept;

 private:
  static constexpr std::size_t kChunkBytes = 64 * 1024, kChunks = 4;
  struct Chunk {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Peer {
    std::array<Chunk, kChunks> out;  // in turn
    std::size_t next_out = 0;
    Chunk in;
    std::size_t in_begin = 0, in_end = 0;  // what of `in` has come and is not read
  };
  // With MPI's lock held. True: the request is over. An error is kept for the next read().
  bool is_over(MPI_Request& request, MPI_Status* status = MPI_STATUS_IGNORE) noexcept;
  bool fill(int peer);

  Place place_;
  MPI_Comm communicator_;
  LocalGroupError& group_error_;
  std::vector<Peer> peers_;
  int failure_ = MPI_SUCCESS;
  std::atomic<std::chrono::steady_clock::time_point> moved_{},
      waited_{};  // last time that bytes moved, that a thread waited
  std::mutex mutex_;
  std::condition_variable interrupted_changed_;
  bool interrupted_ = false;
};

}  // namespace lockstep::mpi
