// A stream of bytes to and from every peer, on which messages travel.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "src/comm/call/group_error.h"

namespace lockstep {

// read(), write() and what ends a stream are called by one thread at a time, and so is wait(), beside them; the rest
// from any.
class ByteChannels {
 public:
  virtual ~ByteChannels() = default;

  // As much as goes at once, perhaps nothing: returns how many bytes. A peer that can no longer be written to takes
  // nothing; reading tells why.
  virtual std::size_t write(int peer, const std::byte* data, std::size_t bytes) noexcept = 0;
  virtual std::size_t read(int peer, std::byte* data, std::size_t bytes) = 0;
  // Nothing follows it. Bytes that do not go at once still go before the channels close, as far as the peer takes them
  // in time.
  virtual void write_last(int peer, const std::byte* data, std::size_t bytes) noexcept { write(peer, data, bytes); }
  // The peer has gone, so that what is not here already will not come: ask before a last read().
  virtual bool has_gone(int peer) = 0;
  virtual void close(int) {}  // nothing more will be read from the peer

  // Returns when a read, or a write to one of the peers in `writing`, may move something, when interrupted, or at
  // `until`; also for no reason.
  virtual void wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept = 0;
  virtual void interrupt() noexcept = 0;

  // Throws the group error, if there is one; what `doing` returns begins the text.
  virtual void throw_if_over(const std::function<std::string()>& doing) = 0;
  // The group is over, on all ranks, for this reason or an earlier one: throws it.
  [[noreturn]] virtual void end(GroupErrorKind kind, const std::string& text, const std::string& doing) = 0;
  virtual std::string name_of_rank(int rank) const = 0;
  // For how long this process was stopped so far: no peer is late for that.
  virtual std::chrono::nanoseconds slept() const { return {}; }
};

}  // namespace lockstep
