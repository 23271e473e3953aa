#include "src/comm/local/local_backend.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

class LocalBackend : public Backend {
 public:
  std::string_view name() const override { return "local"; }
  std::string_view transport() const override { return "none"; }

  void run(const Operation& operation) override {
    throw_if_aborted();
    if (operation.receive != operation.send && operation.bytes() != 0) std::memcpy(operation.receive, operation.send, operation.bytes());
  }

  Work start(const Operation& operation) override {
    run(operation);
    return Work();
  }

  Buffer allocate(std::size_t bytes) override {
    throw_if_aborted();
    Buffer buffer = cpu_device().allocate(bytes);
    if (bytes != 0) std::memset(buffer.data(), 0, bytes);
    return buffer;
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (aborted_.load()) return;
    reason_ = reason;
    aborted_.store(true);
  }

  void leave() noexcept override {}
  TransportCounters counters() const override { return {}; }

 private:
  void throw_if_aborted() {
    if (!aborted_.load()) return;
    const std::lock_guard lock(mutex_);
    throw PeerLost("the process group was aborted: {}", reason_);
  }

  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Backend> make_local_backend() { return std::make_unique<LocalBackend>(); }

}  // namespace lockstep
