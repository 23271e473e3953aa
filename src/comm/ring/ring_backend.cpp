#include "src/comm/ring/ring_backend.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "lockstep/core/error.h"
#include "src/comm/comm_thread.h"
#include "src/comm/composite.h"
#include "src/comm/group_gone.h"
#include "src/comm/ring/hier_transport.h"
#include "src/comm/ring/node_meeting.h"
#include "src/comm/ring/parts.h"
#include "src/comm/ring/point_to_point.h"
#include "src/comm/ring/shm_transport.h"
#include "src/comm/ring/tcp_transport.h"
#include "src/comm/ring/thread_fabric.h"
#include "src/comm/ring/tuning.h"

namespace lockstep {

namespace {

class RingBackend : public Backend {
 public:
  RingBackend(const Place& place, std::unique_ptr<ring::Transport> transport, std::chrono::milliseconds timeout)
      : place_(place),
        transport_(std::move(transport)),
        timeout_(timeout),
        messages_(std::make_shared<ring::PointToPoint>(place, transport_->channels())),
        composite_(place),
        thread_(std::make_shared<CommThread>([this](const Operation& operation) { execute(operation); }, [this] { leave_late(); })) {}
  ~RingBackend() override {
    leave();
    thread_->stop();  // a Work may outlive the backend and keeps the queue: nothing may run in it any more
    transport_->leave();
  }

  std::string_view name() const override { return "ring"; }
  std::string_view transport() const override { return transport_->name(); }
  void run(const Operation& operation) override {
    with_thread(operation, [&] { thread_->run(operation); });
  }
  Work start(const Operation& operation) override {
    return with_thread(operation, [&] { return CommThread::start(thread_, operation); });
  }

  Work send(const Message& message) override { return ring::PointToPoint::send(messages_, message); }
  Work receive(const Message& message) override { return ring::PointToPoint::receive(messages_, message); }

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

  void abort(const std::string& reason) override { transport_->abort(reason); }
  void compare(const Operation& operation) override {
    for_all(operation, [&] {
      transport_->compare(operation);
      if (operation.signature.kind == OperationKind::kAllToAllV) compare_counts(operation);
    });
  }
  void throw_if_over(const std::function<std::string()>& doing) override { transport_->channels().throw_if_over(doing); }
  // A rank that has said goodbye hears of no death any more: what the communication thread is executing must end first.
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
    for_all(operation, [&] {
      if (operation.signature.kind == OperationKind::kAllocate)
        allocated_ = transport_->allocate(operation);
      else if (CompositeCalls::is_composite(operation))
        composite_.run(operation, [this](const Operation& plain) { transport_->execute(plain); });
      else
        transport_->execute(operation);
    });
  }

  // What leave() has left to the thread that was executing.
  void leave_late() noexcept {
    if (left_.load()) transport_->leave();
  }

  template <typename Call>
  std::invoke_result_t<Call> with_thread(const Operation& operation, Call&& call) {
    try {
      return call();
    } catch (const NoThread& refusal) {
      end_for_all(operation, refusal.what());
    }
  }

  // An Error of a transport is one that all ranks have come to, or are told. What else is thrown, memory at its end first of all, has
  // happened to this rank alone, and the others would wait for it.
  template <typename Body>
  void for_all(const Operation& operation, Body&& body) {
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      end_for_all(operation, "it has no memory left");
    } catch (const std::exception& failure) {
      end_for_all(operation, failure.what());
    }
  }

  // Throws what ended the group: this, or what another rank saw first.
  [[noreturn]] void end_for_all(const Operation& operation, std::string_view why) {
    transport_->channels().end(ring::VerdictKind::kFailed, fmt::format("rank {} cannot go on: {}", place_.rank, why),
                               describe(operation.signature, operation.purpose));
    std::abort();  // not reached: GCC forgets of a virtual function that it does not return
  }

  // What one rank sends is what the other receives: no signature tells.
  void compare_counts(const Operation& operation) {
    const auto me = static_cast<std::size_t>(place_.rank);
    ring::CountMatrix counts(static_cast<std::size_t>(place_.world_size));
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
    if (!disagreement.empty()) transport_->channels().end(ring::VerdictKind::kMismatch, doing + ": " + disagreement, doing);
  }

  const Place place_;
  std::unique_ptr<ring::Transport> transport_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<ring::PointToPoint> messages_;  // a Work may outlive the backend; leave() parts it from the transport
  CompositeCalls composite_;
  std::uint64_t allocations_ = 0;
  Buffer allocated_;
  std::atomic<bool> left_{false};
  std::shared_ptr<CommThread> thread_;  // last: it executes on the transport
};

std::unique_ptr<ring::Transport> make_transport(const BackendContext& context) {
  const std::string& asked = context.transport;
  if (asked != "auto" && asked != "shm" && asked != "tcp" && asked != "hierarchical")
    throw InvalidArgument("ring: transport '{}' is none of auto, shm, tcp, hierarchical", asked);
  const ring::Tuning tuning = ring::agree_on_tuning(context);
  if (asked == "tcp") return ring::make_tcp_transport(context, tuning.reduce_order);
  if (context.place.world_size == 1 && asked != "hierarchical") {
    auto fabric = std::make_unique<ring::PrivateFabric>();
    auto control = fabric->share(ring::ControlLayout::bytes(1), context.timeout);
    return std::make_unique<ring::ShmTransport>(context.place, std::move(fabric), std::move(control), tuning, context.stall_timeout);
  }
  ring::NodeMeeting meeting = ring::meet_in_nodes(context);
  const bool is_one_node = meeting.layout.is_one_node(), all_alone = meeting.layout.is_all_alone();
  if (asked == "hierarchical" && (is_one_node || all_alone))
    throw Error("ring: transport hierarchical was asked for, but {}; use LOCKSTEP_TRANSPORT=auto",
                is_one_node ? "all ranks share memory" : "no two ranks share memory: " + meeting.refusal);
  if (is_one_node)
    return std::make_unique<ring::ShmTransport>(context.place, std::move(meeting.fabric), std::move(meeting.control), tuning,
                                                context.stall_timeout);
  if (asked == "shm")
    throw Error("ring: transport shm was asked for, but {}; let all ranks run on one machine, or use LOCKSTEP_TRANSPORT=auto",
                meeting.refusal);
  if (all_alone) return ring::make_tcp_transport(context, tuning.reduce_order);
  return ring::make_hier_transport(context, std::move(meeting), tuning.reduce_order);
}

}  // namespace

std::unique_ptr<Backend> make_ring_backend(const BackendContext& context) {
  return make_ring_backend(context.place, make_transport(context), context.timeout);
}

std::unique_ptr<Backend> make_ring_backend(const Place& place, std::unique_ptr<ring::Transport> transport,
                                           std::chrono::milliseconds timeout) {
  return std::make_unique<RingBackend>(place, std::move(transport), timeout);
}

}  // namespace lockstep
