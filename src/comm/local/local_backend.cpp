#include "src/comm/local/local_backend.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/call/point_to_point.h"
#include "src/comm/call/unregistered_memory.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/operation/composite.h"

namespace lockstep {

namespace {

// There are no peers. A rank's messages to itself need no channel.
class NoChannels : public ByteChannels {
 public:
  std::size_t write(int, const std::byte*, std::size_t) noexcept override { return 0; }
  std::size_t read(int, std::byte*, std::size_t) override { return 0; }
  bool has_gone(int) override { return true; }
  void wait(const std::vector<bool>&, std::chrono::steady_clock::time_point until) noexcept override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [this] { return std::exchange(interrupted_, false); });
  }
  void interrupt() noexcept override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  void throw_if_over(const std::function<std::string()>& doing) override {
    if (group_error_.stands()) throw_group_error(group_error_.get(), doing());
  }
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text, const std::string& doing) override {
    group_error_.declare(kind, text);
    interrupt();
    throw_group_error(group_error_.get(), doing);
  }
  std::string name_of_rank(int) const override { return "rank 0"; }

  LocalGroupError& group_error() { return group_error_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool interrupted_ = false;
  LocalGroupError group_error_;
};

class LocalBackend : public Backend {
 public:
  ~LocalBackend() override { leave(); }
  std::string_view name() const override { return "local"; }
  std::string_view transport() const override { return "none"; }

  void run(const Operation& operation) override {
    channels_.throw_if_over([&] { return describe(operation.signature, operation.purpose); });
    if (CompositeCalls::is_composite(operation))
      return composite_.run(operation, [](const Operation& plain) { copy(plain); });
    copy(operation);
  }

  Work start(const Operation& operation) override {
    flight::note_started(operation.flight);
    run(operation);
    flight::note_finished(operation.flight);
    return Work();
  }

  Work start_chained(const Operation& operation, const Work&) override {
    return run_chained_or_end(operation, cpu_device().default_stream(), channels_.group_error());
  }

  Work send(const Message& message) override { return PointToPoint::send(messages_, message); }
  Work receive(const Message& message) override { return PointToPoint::receive(messages_, message); }

  Buffer allocate(std::size_t bytes) override {
    channels_.throw_if_over([&] { return fmt::format("allocate ({} bytes)", bytes); });
    return allocate_unregistered(bytes);
  }

  void abort(const std::string& reason) override {
    channels_.group_error().declare(GroupErrorKind::kPeerLost, "the process group was aborted: " + reason);
    channels_.interrupt();
  }

  void leave() noexcept override { messages_->leave(); }
  TransportCounters counters() const override { return {}; }

 private:
  // The result is the data of the only rank.
  static void copy(const Operation& operation) {
    std::size_t bytes = operation.bytes();
    if (operation.signature.kind == OperationKind::kAllToAllV) {
      const std::size_t sent = operation.layout->send_counts[0], received = operation.layout->receive_counts[0];
      if (sent != received)
        throw MismatchError("{}: rank 0 sends {} elements to itself and expects {}",
                            describe(operation.signature, operation.purpose), sent, received);
      bytes = sent * size_of(operation.signature.dtype);
    }
    if (operation.receive != operation.send && bytes != 0) std::memcpy(operation.receive, operation.send, bytes);
  }

  NoChannels channels_;
  std::shared_ptr<PointToPoint> messages_ = std::make_shared<PointToPoint>(Place{}, channels_);
  CompositeCalls composite_{Place{}};
};

}  // namespace

std::unique_ptr<Backend> make_local_backend() { return std::make_unique<LocalBackend>(); }

}  // namespace lockstep
