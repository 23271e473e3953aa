// A world of one whose data is on a GPU: results are copies on the device's default stream, in stream order.
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/call/group_error.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/operation/composite.h"

namespace lockstep {

namespace {

constexpr Capabilities kCapabilities{.same_bits_on_all_ranks = true,
                                     .repeatable_bits = true,
                                     .sums_in_rank_order = true,
                                     .idle_waiting = true,
                                     .abort = true,
                                     .ranks_may_be_threads = true,
                                     .gpu_memory = true,
                                     .most_ranks = 1};

// Events on the default stream, one for each call. An event that was reused belongs to a later call, which serves as
// well.
class Marks : public CompletionQueue {
 public:
  explicit Marks(Device& device) : device_(device) {
    for (auto& event : events_) event = device.new_event();
  }
  std::uint64_t set() {
    const std::lock_guard lock(mutex_);
    event(++last_).record(device_.default_stream());
    return last_;
  }
  bool done(std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    if (done_ < ticket && event(ticket).done()) done_ = ticket;
    return done_ >= ticket;
  }
  void wait(std::uint64_t ticket) override {
    if (!done(ticket)) device_.default_stream().synchronize();
  }
  void stream_wait(std::uint64_t ticket, Stream& stream) override {
    const std::lock_guard lock(mutex_);
    event(ticket).stream_wait(stream);
  }

 private:
  Event& event(std::uint64_t ticket) { return *events_[ticket % events_.size()]; }

  Device& device_;
  std::mutex mutex_;
  std::array<std::unique_ptr<Event>, 64> events_;
  std::uint64_t last_ = 0, done_ = 0;
};

class LocalDeviceBackend : public Backend {
 public:
  explicit LocalDeviceBackend(Device& device) : device_(device), marks_(std::make_shared<Marks>(device)) {}

  std::string_view name() const override { return "local"; }
  std::string_view transport() const override { return "none"; }
  const Capabilities& capabilities() const override { return kCapabilities; }

  void run(const Operation& operation) override { start(operation).wait(); }
  Work start(const Operation& operation) override {
    throw_if_over([&] { return describe(operation.signature, operation.purpose); });
    flight::note_started(operation.flight);
    queue(operation);
    flight::note_finished(operation.flight);
    return is_capturing_ ? Work() : Work(marks_, marks_->set());
  }

  // Runs in the order of the default stream, as all calls in a world of one.
  Work start_chained(const Operation& operation, const Work&) override {
    throw_if_over([&] { return describe_chained(operation); });
    run_chained_or_end(operation, device_.default_stream(), group_error_);
    return is_capturing_ ? Work() : Work(marks_, marks_->set());
  }

  Buffer allocate(std::size_t bytes) override {
    throw_if_over([&] { return fmt::format("allocate ({} bytes)", bytes); });
    const std::size_t floats = (bytes + sizeof(float) - 1) / sizeof(float);
    Buffer buffer = device_.allocate(floats * sizeof(float));
    if (floats != 0)
      device_.kernels().fill({reinterpret_cast<float*>(buffer.data()), {static_cast<std::int64_t>(floats)}}, 0,
                             device_.default_stream());
    return buffer.window(0, bytes);
  }

  void abort(const std::string& reason) override {
    group_error_.declare(GroupErrorKind::kPeerLost, "the process group was aborted: " + reason);
  }
  void throw_if_over(const std::function<std::string()>& doing) override {
    if (group_error_.stands()) throw_group_error(group_error_.get(), doing());
  }
  // The work needs no peer, so that a graph can record it unchanged.
  void begin_capture() override { is_capturing_ = true; }
  std::uint64_t end_capture() override {
    is_capturing_ = false;
    return 1;
  }
  Work start_replay(const Operation&) override { return Work(marks_, marks_->set()); }
  void leave() noexcept override {}
  TransportCounters counters() const override { return {}; }

 private:
  void queue(const Operation& operation) {
    const Signature& call = operation.signature;
    if (operation.layout && !operation.layout->regions.empty()) {
      for (const Region& region : operation.layout->regions) give(operation, region.data, region.data, region.count);
      return;
    }
    std::size_t count = call.count;
    if (call.kind == OperationKind::kAllToAllV) {
      count = operation.layout->send_counts[0];
      if (const std::size_t received = operation.layout->receive_counts[0]; received != count)
        throw MismatchError("{}: rank 0 sends {} elements to itself and expects {}", describe(call, operation.purpose),
                            count, received);
    }
    give(operation, operation.send, operation.receive, count);
  }

  void give(const Operation& operation, const void* send, void* receive, std::size_t count) {
    const Signature& call = operation.signature;
    if (count == 0) return;
    if (is_reduction(call.kind) && call.op == ReduceOp::kPremulSum)
      return scale(call.dtype, send, receive, count, operation.factor);
    if (send != receive) device_.copy(receive, send, count * size_of(call.dtype), device_.default_stream());
  }

  void scale(DType dtype, const void* send, void* receive, std::size_t count, double factor) {
    Stream& stream = device_.default_stream();
    const Shape shape{static_cast<std::int64_t>(count)};
    if (dtype == DType::kFloat32)
      return device_.kernels().scale({send, dtype, shape}, static_cast<float>(factor), {receive, dtype, shape}, stream);
    // Rare in a world of one, so there is no kernel for it.
    if (is_capturing_)
      throw InvalidArgument(
          "a pre-multiplied sum of {} is computed on the host in a world of one and cannot be part of a graph",
          name_of(dtype));
    std::vector<std::byte> values(count * size_of(dtype));
    device_.copy(values.data(), send, values.size(), stream);
    stream.synchronize();
    lockstep::scale(dtype, values.data(), values.data(), count, factor);
    device_.upload(receive, values.data(), values.size(), stream);
  }

  Device& device_;
  const std::shared_ptr<Marks> marks_;  // a Work may outlive the backend
  LocalGroupError group_error_;
  bool is_capturing_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_local_backend(Device& device) { return std::make_unique<LocalDeviceBackend>(device); }

}  // namespace lockstep
