#include "src/comm/host/host_backend.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "lockstep/core/error.h"
#include "src/comm/call/comm_thread.h"
#include "src/comm/call/continuation.h"
#include "src/comm/call/group_gone.h"
#include "src/comm/call/point_to_point.h"
#include "src/comm/host/hierarchical/hier_transport.h"
#include "src/comm/host/machine/node_rendezvous.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/host/shm/tuning.h"
#include "src/comm/host/tcp/tcp_transport.h"
#include "src/comm/operation/composite.h"
#include "src/comm/operation/parts.h"
#include "src/core/base/message_text.h"

namespace lockstep {

namespace {

class HostBackend : public Backend {
 public:
  HostBackend(const Place& place, std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout)
      : place_(place),
        transport_(std::move(transport)),
        timeout_(timeout),
        messages_(std::make_shared<PointToPoint>(place, transport_->channels())),
        composite_(place),
        thread_(std::make_shared<CommThread>([this](const Operation& operation) { execute(operation); },
                                             [this] { leave_late(); })) {}
  ~HostBackend() override {
    leave();
    thread_->stop();  // a Work may outlive the backend and holds the queue: nothing may run in it any more
    transport_->leave();
  }

  std::string_view name() const override { return "host"; }
  std::string_view transport() const override { return transport_->name(); }
  void run(const Operation& operation) override {
    with_thread(operation, [&] { thread_->run(operation); });
  }
  Work start(const Operation& operation) override {
    return with_thread(operation, [&] { return CommThread::start(thread_, operation); });
  }

  Work start_chained(const Operation& operation, const Work&) override { return start(operation); }
  void await_idle() noexcept override { thread_->await_idle(); }
  Work send(const Message& message) override { return PointToPoint::send(messages_, message); }
  Work receive(const Message& message) override { return PointToPoint::receive(messages_, message); }

  Buffer allocate(std::size_t bytes) override {
    Operation operation;
    operation.signature.kind = OperationKind::kAllocate;
    operation.signature.sequence = ++allocations_;
    operation.signature.count = bytes;
    operation.signature.dtype = DType::kUInt8;
    operation.timeout = timeout_;
    run(operation);
    return std::exchange(allocated_, {});
  }

  std::vector<std::byte*> peer_addresses(const void* data, std::size_t bytes) const override {
    return transport_->peer_addresses(data, bytes);
  }
  void abort(const std::string& reason) override { transport_->abort(reason); }
  void compare(const Operation& operation) override {
    for_all(operation, [&] {
      transport_->compare(operation);
      if (operation.signature.kind == OperationKind::kAllToAllV) compare_counts(operation);
    });
  }
  void throw_if_over(const std::function<std::string()>& doing) override {
    transport_->channels().throw_if_over(doing);
  }
  // A rank that has sent its goodbye is not told of deaths any more, so the running operation must end first.
  void leave() noexcept override {
    messages_->leave();
    left_.store(true);
    if (!thread_->is_executing()) transport_->leave();
  }
  TransportCounters counters() const override { return transport_->counters(); }
  void on_over(std::function<void(const std::string&)> call) override { transport_->on_over(std::move(call)); }

 private:
  void execute(const Operation& operation) {
    if (left_.load()) {
      transport_->leave();
      throw group_gone();
    }
    if (operation.chained.run) return run_continuation(operation);
    for_all(operation, [&] {
      if (operation.signature.kind == OperationKind::kAllocate)
        allocated_ = transport_->allocate(operation);
      else if (CompositeCalls::is_composite(operation))
        composite_.run(operation, [this](const Operation& plain) { transport_->execute(plain); });
      else
        transport_->execute(operation);
    });
  }

  // An error of the continuation affects this rank alone, unless the group has ended.
  void run_continuation(const Operation& operation) {
    try {
      run_chained(operation, cpu_device().default_stream());
    } catch (...) {
      if (left_.load()) throw;
      const std::string doing = describe_chained(operation), failure = exception_text(std::current_exception());
      transport_->channels().throw_if_over([&] { return doing; });
      transport_->channels().end(GroupErrorKind::kFailed,
                                 fmt::format("rank {} cannot go on: {}: {}", place_.rank, doing, failure), doing);
    }
  }

  // The part of leave() that is left to the executing thread.
  void leave_late() noexcept {
    if (left_.load()) transport_->leave();
  }

  template <typename Call> std::invoke_result_t<Call> with_thread(const Operation& operation, Call&& call) {
    try {
      return call();
    } catch (const NoThread& refusal) {
      end_for_all(operation, refusal.what());
    }
  }

  // All ranks throw a transport's Error, or are told of it. Any other exception, such as bad_alloc, occurs on this rank
  // alone, and the others would wait for it.
  template <typename Body> void for_all(const Operation& operation, Body&& body) {
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      end_for_all(operation, "it has no memory left");
    } catch (...) {
      end_for_all(operation, exception_text(std::current_exception()));
    }
  }

  // Throws the group error: this one, or one that another rank saw first.
  [[noreturn]] void end_for_all(const Operation& operation, std::string_view why) {
    transport_->channels().end(GroupErrorKind::kFailed, fmt::format("rank {} cannot go on: {}", place_.rank, why),
                               describe(operation.signature, operation.purpose));
    std::abort();  // not reached: GCC ignores noreturn on a virtual function
  }

  // One rank's send counts are the others' receive counts, so signatures cannot compare them.
  void compare_counts(const Operation& operation) {
    const auto me = static_cast<std::size_t>(place_.rank);
    AlltoallvCounts counts(static_cast<std::size_t>(place_.world_size));
    counts.say(me, operation.layout->send_counts, operation.layout->receive_counts);
    Operation exchange = operation;
    exchange.flight = {};
    exchange.layout = nullptr;
    exchange.signature.kind = OperationKind::kAllGather;
    exchange.signature.layout = 0;
    exchange.signature.dtype = DType::kInt64;
    exchange.signature.count = counts.row_length();
    exchange.send = counts.row(me);
    exchange.receive = counts.row(0);
    transport_->execute(exchange);
    const std::string disagreement = counts.disagreement(), doing = describe(operation.signature, operation.purpose);
    if (!disagreement.empty())
      transport_->channels().end(GroupErrorKind::kMismatch, doing + ": " + disagreement, doing);
  }

  const Place place_;
  std::unique_ptr<Transport> transport_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<PointToPoint> messages_;  // a Work may outlive the backend; leave() disconnects it from the transport
  CompositeCalls composite_;
  std::uint64_t allocations_ = 0;
  Buffer allocated_;
  std::atomic<bool> left_{false};
  std::shared_ptr<CommThread> thread_;  // last: it executes on the transport
};

std::unique_ptr<Transport> make_transport(const BackendContext& context) {
  const std::string& asked = context.transport;
  if (asked != "auto" && asked != "shm" && asked != "tcp" && asked != "hierarchical")
    throw InvalidArgument("backend host: unknown transport '{}'; expected auto, shm, tcp or hierarchical", asked);
  const host::Tuning tuning = host::agree_on_tuning(context);
  if (asked == "tcp") return host::make_tcp_transport(context, tuning.reduce_order);
  if (context.place.world_size == 1 && asked != "hierarchical") {
    auto provider = std::make_unique<host::PrivateMemoryProvider>();
    auto control = provider->share(host::ControlLayout::bytes(1), context.timeout);
    return std::make_unique<host::ShmTransport>(context.place, std::move(provider), std::move(control), tuning,
                                                context.stall_timeout);
  }
  host::NodeRendezvous rendezvous = host::find_nodes(context);
  const bool is_one_node = rendezvous.layout.is_one_node(), all_alone = rendezvous.layout.is_all_alone();
  if (asked == "hierarchical" && (is_one_node || all_alone))
    throw Error("backend host: transport hierarchical was requested, but {}; use LOCKSTEP_TRANSPORT=auto",
                is_one_node ? "all ranks share memory" : "no two ranks share memory: " + rendezvous.refusal);
  if (is_one_node)
    return std::make_unique<host::ShmTransport>(context.place, std::move(rendezvous.provider),
                                                std::move(rendezvous.control), tuning, context.stall_timeout);
  if (asked == "shm")
    throw Error(
        "backend host: transport shm was requested, but {}; let all ranks run on one machine, or use "
        "LOCKSTEP_TRANSPORT=auto",
        rendezvous.refusal);
  if (all_alone) return host::make_tcp_transport(context, tuning.reduce_order);
  return host::make_hier_transport(context, std::move(rendezvous), tuning.reduce_order);
}

}  // namespace

std::unique_ptr<Backend> make_host_backend(const BackendContext& context) {
  return make_host_backend(context.place, make_transport(context), context.timeout);
}

std::unique_ptr<Backend> make_host_backend(const Place& place, std::unique_ptr<Transport> transport,
                                           std::chrono::milliseconds timeout) {
  return std::make_unique<HostBackend>(place, std::move(transport), timeout);
}

}  // namespace lockstep
