// How the ranks of one machine come to share memory. Two ways: memfds handed over through a socket, for processes, and
// one plain mapping, for ranks that are threads (where ThreadSanitizer sees what they do to each other).
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep::host {

// Memory that all ranks of the machine see; unmapped by this process when the last handle goes.
class SharedSegment {
 public:
  virtual ~SharedSegment() = default;
  virtual std::byte* data() const = 0;
};

class SharedMemoryProvider {
 public:
  virtual ~SharedMemoryProvider() = default;

  // Collective, one call at a time: zeroed memory of that many bytes (the same on all ranks), aligned to a page. Throws
  // Error that says what failed here; a peer may fail by itself, so ask the others before touching it.
  virtual std::shared_ptr<SharedSegment> share(std::size_t bytes, std::chrono::milliseconds timeout) = 0;

  // By rank: a descriptor that hangs up when that rank's process is gone. -1, or an empty list: nothing to watch.
  virtual std::span<const int> liveness_fds() const { return {}; }

  // From any thread: makes this rank's liveness fd readable at its peers, for good.
  virtual void wake_peers() noexcept {}

  // Closes what peers watch. Called after the goodbye was written to shared memory.
  virtual void close() noexcept {}
};

}  // namespace lockstep::host
