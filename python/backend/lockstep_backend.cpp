#include "python/backend/lockstep_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "python/backend/errors.h"
#include "python/backend/python_lock.h"
#include "python/backend/store_adapter.h"

namespace lockstep::torch_backend {

namespace {

using std::chrono::milliseconds;

std::shared_ptr<ProcessGroup> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   milliseconds timeout) {
  const auto place_of = [](const char* variable, int otherwise) {
    return static_cast<int>(env::integer(variable, 0, 1 << 20).value_or(otherwise));
  };
  Place place{rank, size};
  place.local_rank = place_of(env::kLocalRank, 0);
  place.local_world_size = std::max(place.local_rank + 1, place_of(env::kLocalWorldSize, 1));
  ProcessGroupOptions options;
  options.timeout = timeout;
  options.device = &cpu_device();
  if (!env::text(env::kStoreTimeout)) options.store_timeout = std::min(timeout, store->getTimeout());
  const auto meeting = meeting_store(store, rank);
  std::string token = shared_token(*meeting);
  return ProcessGroup::create(place, meeting, std::move(token), options, advertised_address(store));
}

}  // namespace

LockstepBackend::LockstepBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout)
    : Backend(rank, size),
      timeout_(timeout),
      group_(with_torch_errors([&] { return join(store->clone(), rank, size, timeout); })),
      queue_(std::make_shared<CallQueue>()),
      pump_(std::make_shared<MessagePump>(queue_)) {
  MessagePump::introduce(pump_);
  init();
}

// A forked child has the group's memory, but none of its threads: it keeps the memory.
LockstepBackend::~LockstepBackend() {
  if (!process_.is_this()) {
    static auto& kept = *new std::vector<std::pair<std::shared_ptr<ProcessGroup>, std::shared_ptr<CallQueue>>>;
    kept.emplace_back(std::move(group_), std::move(queue_));
    return;
  }
  const WithoutPythonLock released;
  shutdown();
  group_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> LockstepBackend::getBackendOptions() {
  return c10::make_intrusive<Options>("lockstep", timeout_.load());
}

void LockstepBackend::shutdown() {
  if (!process_.is_this() || has_left_.exchange(true)) return;
  const WithoutPythonLock released;
  queue_->close("lockstep: rank " + std::to_string(getRank()) +
                " has left this process group (destroy_process_group(), or the program ends)");
  group_->leave();
  queue_->join();
}

void LockstepBackend::abort() {
  if (!process_.is_this()) return;
  group_->abort("torch.distributed's abort() was called");
  shutdown();
}

void LockstepBackend::check_usable(const char* call) const {
  if (!process_.is_this()) refuse(call, getRank(), process_.refusal());
}

void LockstepBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_.emplace();
  is_coalescing_.store(true);
}

LockstepBackend::WorkPointer LockstepBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  if (!coalescing_) refuse("endCoalescing", getRank(), "startCoalescing() has not been called");
  auto works = std::move(*coalescing_);
  coalescing_.reset();
  is_coalescing_.store(false);
  if (works.size() == 1) return works[0];
  return c10::make_intrusive<ManyWorks>(getRank(), std::move(works), queue_);
}

LockstepBackend::WorkPointer LockstepBackend::keep_if_coalescing(WorkPointer work) {
  if (!is_coalescing_.load()) return work;
  const std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalescing_->push_back(work);
  return work;
}

LockstepBackend::WorkPointer LockstepBackend::issue_job(Call call, std::function<void()> job) {
  const char* const name = std::strchr(call.title, ':') + 1;
  check_usable(name);
  for (const at::Tensor& output : call.outputs) check_output(name, getRank(), output);
  auto work = c10::make_intrusive<CallWork>(getRank(), call.type, call.title, std::move(call.inputs),
                                            calls_.fetch_add(1) + 1, std::move(job), std::move(call.outputs), queue_);
  queue_->issue(work, call.is_async);
  return keep_if_coalescing(std::move(work));
}

void LockstepBackend::run_guarded(c10::function_ref<void()> run) {
  struct Pumping {
    explicit Pumping(MessagePump& pump) : pump(pump) { pump.begin_collective(); }
    ~Pumping() { pump.end_collective(); }
    MessagePump& pump;
  } const pumping(*pump_);
  try {
    run();
  } catch (const TimeoutError&) {
    note_failure(c10d::ErrorType::TIMEOUT);
    throw;
  } catch (const PeerLost&) {
    note_failure(c10d::ErrorType::REMOTE_ERROR);
    throw;
  } catch (const InvalidArgument&) {  // of this call; the group goes on
    throw;
  } catch (...) {
    note_failure(c10d::ErrorType::COMM_ERROR);
    throw;
  }
}

void LockstepBackend::note_failure(c10d::ErrorType kind) {
  auto none = c10d::ErrorType::SUCCESS;
  error_.compare_exchange_strong(none, kind);
}

LockstepBackend::WorkPointer LockstepBackend::message(const char* call, const char* title, c10d::OpType type,
                                                      Tensors& tensors, int peer, int tag) {
  check_usable(call);
  check_single(call, tensors);
  if (tag < 0) refuse(call, getRank(), "got tag " + std::to_string(tag) + "; tags are not negative");
  const bool is_send = type == c10d::OpType::SEND;
  if (!is_send) check_output(call, getRank(), tensors[0]);
  auto operand = moved(tensors[0], is_send ? Access::kRead : Access::kWrite);
  operand.prepare();
  auto work = c10::make_intrusive<MessageWork>(getRank(), type, title, tensors[0], std::move(operand),
                                               calls_.fetch_add(1) + 1, queue_);
  const Operand& data = work->operand();
  CallOptions options;
  options.timeout = timeout_.load();
  {
    const std::lock_guard lock(message_mutex_);
    work->begin(with_torch_errors([&] {
      return is_send ? group_->send_async(data.data(), data.count(), data.dtype(), peer, tag, options)
                     : group_->recv_async(data.data(), data.count(), data.dtype(), peer, tag, work->sender(), options);
    }));
  }
  pump_->add(work);
  return keep_if_coalescing(std::move(work));
}

LockstepBackend::WorkPointer LockstepBackend::send(Tensors& tensors, int to, int tag) {
  return message("send", "lockstep:send", c10d::OpType::SEND, tensors, to, tag);
}

LockstepBackend::WorkPointer LockstepBackend::recv(Tensors& tensors, int from, int tag) {
  return message("recv", "lockstep:recv", c10d::OpType::RECV, tensors, from, tag);
}

LockstepBackend::WorkPointer LockstepBackend::recvAnysource(Tensors& tensors, int tag) {
  return message("recv", "lockstep:recvAnySource", c10d::OpType::RECVANYSOURCE, tensors, kAnyRank, tag);
}

LockstepBackend::WorkPointer LockstepBackend::barrier(const c10d::BarrierOptions& options) {
  return issue(call_of(c10d::OpType::BARRIER, "lockstep:barrier", options, {}, {}),
               [this](const CallOptions& call) { group_->barrier(call); });
}

// All missing ranks are named in any case.
void LockstepBackend::monitoredBarrier(const c10d::BarrierOptions& barrier, bool /*wait_for_all*/) {
  auto call = call_of(c10d::OpType::BARRIER, "lockstep:monitored_barrier", barrier, {}, {});
  call.is_async = false;
  issue(std::move(call), [this](const CallOptions& options) {
    group_->monitored_barrier(options.timeout);
  })->wait(kNoTimeout);
}

}  // namespace lockstep::torch_backend
