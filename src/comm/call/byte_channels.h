// A stream of bytes to and from every peer; messages travel on it.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "src/comm/call/group_error.h"

namespace lockstep {

// One thread at a time may call read(), write() and the functions that end a stream; one thread at a time may call
// wait(), concurrently with the former. Any thread may call the other functions.
class ByteChannels {
 public:
  virtual ~ByteChannels() = default;

  // Writes as much as the channel accepts without blocking, and returns the number of bytes. A peer that has gone
  // accepts nothing; read() reports the reason.
  virtual std::size_t write(int peer, const std::byte* data, std::size_t bytes) noexcept = 0;
  virtual std::size_t read(int peer, std::byte* data, std::size_t bytes) = 0;
  // Ends the stream with this data. Bytes that cannot be written at once are written before the channels close, if the
  // peer accepts them in time.
  virtual void write_last(int peer, const std::byte* data, std::size_t bytes) noexcept { write(peer, data, bytes); }
  // Whether the peer has gone, so that nothing more will arrive. Call it before a last read().
  virtual bool has_gone(int peer) = 0;
  virtual void close(int) {}  // nothing more will be read from the peer

  // Returns when a read, or a write to one of the peers in `writing`, may make progress, on an interrupt, or at
  // `until`; it may also return spuriously.
  virtual void wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept = 0;
  virtual void interrupt() noexcept = 0;

  // Throws the group error, if there is one. The text begins with the result of `doing`.
  virtual void throw_if_over(const std::function<std::string()>& doing) = 0;
  // Ends the group on all ranks for this reason, unless it has ended already, and throws the group error.
  [[noreturn]] virtual void end(GroupErrorKind kind, const std::string& text, const std::string& doing) = 0;
  virtual std::string name_of_rank(int rank) const = 0;
  // Total time for which this process was stopped; it does not count as delay of a peer.
  virtual std::chrono::nanoseconds slept() const { return {}; }
};

}  // namespace lockstep
