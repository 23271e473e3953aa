// Provides memory that the ranks of one machine share: memfds passed through a socket for processes, or one plain
// mapping for ranks that are threads (so that ThreadSanitizer can check their accesses).
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep::host {

// Memory that all ranks of the machine map. This process unmaps it with its last handle.
class SharedSegment {
 public:
  virtual ~SharedSegment() = default;
  virtual std::byte* data() const = 0;
};

class SharedMemoryProvider {
 public:
  virtual ~SharedMemoryProvider() = default;

  // Collective, one call at a time: returns zeroed, page-aligned memory of `bytes` (equal on all ranks). Throws Error
  // that says what failed here. A peer may fail alone, so agree with the others before using the memory.
  virtual std::shared_ptr<SharedSegment> share(std::size_t bytes, std::chrono::milliseconds timeout) = 0;

  // By rank: a descriptor that hangs up when that rank's process exits. -1, or an empty list: nothing to watch.
  virtual std::span<const int> liveness_fds() const { return {}; }

  // Any thread may call it. Makes this rank's liveness fd readable for its peers, permanently.
  virtual void wake_peers() noexcept {}

  // Closes the descriptors that peers watch. Call it after the goodbye is written to shared memory.
  virtual void close() noexcept {}
};

}  // namespace lockstep::host
