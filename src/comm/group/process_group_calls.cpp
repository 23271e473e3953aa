// The calls of a process group: each is described, checked, numbered and handed to the backend.
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/group/call_chain.h"
#include "src/comm/group/process_group_impl.h"
#include "src/comm/operation/call_checks.h"

namespace lockstep {

namespace {

std::uint32_t hash_of_name(const char* name) {
  if (name == nullptr) return 0;
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 16777619u;
  return hash;
}

// Counts are copied: the caller's may go before the Work is done.
CallData gathered(const void* send, void* receive, ProcessGroup::Counts counts, DType dtype) {
  auto layout = std::make_shared<Layout>();
  layout->receive_counts.assign(counts.begin(), counts.end());
  const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  return {send, receive, all, dtype, ReduceOp::kSum, -1, std::move(layout)};
}

CallData exchanged(const void* send, ProcessGroup::Counts send_counts, void* receive,
                   ProcessGroup::Counts receive_counts, DType dtype) {
  auto layout = std::make_shared<Layout>();
  layout->send_counts.assign(send_counts.begin(), send_counts.end());
  layout->receive_counts.assign(receive_counts.begin(), receive_counts.end());
  return {send, receive, 0, dtype, ReduceOp::kSum, -1, std::move(layout)};
}

CallData coalesced(std::span<const Region> buffers, DType dtype, ReduceOp op, int root) {
  auto layout = std::make_shared<Layout>();
  layout->regions.assign(buffers.begin(), buffers.end());
  std::size_t all = 0;
  for (const Region& buffer : buffers) all += buffer.count;
  return {nullptr, nullptr, all, dtype, op, root, std::move(layout)};
}

}  // namespace

ProcessGroup::Impl::Impl(const Place& place, Backends made, Device* device, std::chrono::milliseconds timeout,
                         const GroupOrigin& origin)
    : chains{std::make_shared<Chain>(DeviceKind::kCpu), std::make_shared<Chain>(DeviceKind::kCuda)},
      place(place),
      device(device),
      timeout(timeout),
      recorded(std::make_shared<flight::RecordedGroup>()),
      backends(std::move(made)),
      process(getpid()) {
  recorded->description = {
      .name = origin.name, .rank = place.rank, .world_size = place.world_size, .members = origin.members};
  for (std::size_t kind = 0; kind < backends.size(); ++kind) {
    if (!backends[kind]) continue;
    capabilities[kind] = backends[kind]->capabilities();
    const char* const comma = kind == 0 ? "" : ", ";
    recorded->description.backend += comma + std::string(backends[kind]->name());
    recorded->description.transport += comma + std::string(backends[kind]->transport());
  }
  recorded->job = origin.job;
  recorded->job_rank = origin.members.empty() ? place.rank : origin.members[static_cast<std::size_t>(place.rank)];
  recorded->job_world_size = origin.members.empty() ? place.world_size : origin.job_world_size;
  flight::add(recorded);
  // A rank that is in its program's code writes its record as well: it may be the one for which the others have waited.
  for (const auto& each : backends)
    if (each)
      each->on_over([this, over = each.get()](const std::string& why) {
        recorded->recorder.group_failed(why);
        end_all(over, why);
      });
}

// A group is over with the first of its backends.
void ProcessGroup::Impl::end_all(const Backend* over, const std::string& why) {
  if (is_over.exchange(true)) return;
  const std::lock_guard lock(ending);
  if (is_leaving) return;
  for (const auto& each : backends)
    if (each && each.get() != over) each->abort(why);
}

ProcessGroup::Impl::~Impl() {
  flight::remove(recorded);
  {
    const std::lock_guard lock(ending);
    is_leaving = true;
  }
  if (process == getpid()) return;
  // A forked child has the group's connections but none of its threads: a goodbye would be said in its parent's name.
  static auto& parents = *new std::vector<std::unique_ptr<Backend>>;
  for (auto& each : backends) parents.push_back(std::move(each));
}

Backend& ProcessGroup::Impl::backend(DeviceKind kind, std::string_view what) const {
  const auto& found = backends[static_cast<std::size_t>(kind)];
  if (!found)
    throw InvalidArgument(
        "{} on rank {}: the data is on a GPU, and this group's device is the CPU. Move it there "
        "(to(group->local_device())), or make the "
        "group "
        "with its GPU ({}=cuda)",
        what, place.rank, env::kDevice);
  return *found;
}

void ProcessGroup::Impl::check_usable(std::string_view what, DeviceKind device, bool is_async) const {
  if (has_left) throw InvalidArgument("{}: this rank has left the group", what);
  if (const RunningContinuation* running = running_continuation())
    check_continuation(*running, what, is_async && what != "then");
  if (!is_capturing || (device == DeviceKind::kCuda && is_async)) return;
  throw InvalidArgument("{} on rank {}: a graph is being recorded, and this call {}", what, place.rank,
                        device == DeviceKind::kCuda ? "waits; only asynchronous collectives can be part of it"
                                                    : "on the host's memory would run once, and not with every launch");
}

Operation ProcessGroup::Impl::number_graph(const CapturedCalls& calls, CallOptions call, FlightRecorder::By by) {
  if (call.purpose.name == nullptr) call.purpose = {"graph", calls.index};
  Operation operation = number(OperationKind::kBarrier, {}, call, by);
  operation.signature.layout = calls.hash;
  return operation;
}

Operation ProcessGroup::Impl::number(OperationKind kind, const CallData& data, const CallOptions& call,
                                     FlightRecorder::By by) {
  check_usable(name_of(kind), call.device, by == FlightRecorder::By::kLater);
  Operation operation;
  Signature& signature = operation.signature;
  signature.count = data.count;
  signature.layout = data.layout ? hash_of(*data.layout) : 0;
  signature.kind = kind;
  signature.dtype = data.dtype;
  signature.op = data.op;
  signature.root = data.root;
  signature.purpose_index = call.purpose.index;
  signature.purpose_hash = hash_of_name(call.purpose.name);
  operation.send = data.send;
  operation.receive = data.receive;
  operation.layout = data.layout;
  operation.factor = call.factor;
  operation.purpose = call.purpose;
  operation.timeout = timeout_of(call);
  check_capabilities(signature, capabilities[static_cast<std::size_t>(call.device)],
                     backend(call.device, name_of(kind)).name());
  check_call(operation, place);
  RunningContinuation* const running = running_continuation();
  if (running != nullptr) running->has_made_it = true;
  if (is_capturing) return operation;  // a launch of the graph will count
  if (running == nullptr && next_pass.pass != 0) {
    operation.pass = std::exchange(next_pass, {});
    signature.pass = hash_of(operation.pass);
  }
  signature.sequence = running != nullptr ? running->number : ++sequence;
  operation.flight = recorded->recorder.collective(signature, call.purpose, by);
  return operation;
}

void ProcessGroup::Impl::run(OperationKind kind, const CallData& data, const CallOptions& call) {
  const Operation operation = number(kind, data, call, FlightRecorder::By::kCaller);
  try {
    backend(call.device, name_of(kind)).run(operation);
  } catch (...) {
    flight::note_failed(operation.flight);
    throw;
  }
  flight::note_finished(operation.flight);
}

Work ProcessGroup::Impl::start(OperationKind kind, const CallData& data, const CallOptions& call) {
  const Operation operation = number(kind, data, call, FlightRecorder::By::kLater);
  try {
    return Work(backend(call.device, name_of(kind)).start(operation), chains[static_cast<std::size_t>(call.device)]);
  } catch (...) {
    flight::note_failed(operation.flight);
    throw;
  }
}

std::chrono::milliseconds ProcessGroup::Impl::timeout_of(const CallOptions& call) const {
  if (call.timeout.count() < 0)
    throw InvalidArgument(
        "process group on rank {}: a call with a timeout of {} ms; 0 is the group's, more is the call's own",
        place.rank, call.timeout.count());
  return std::min(kLongestTimeout, call.timeout.count() > 0 ? call.timeout : timeout);
}

Work ProcessGroup::Impl::send(Message message, const CallOptions& call) {
  check_usable("send", call.device, false);
  message.timeout = timeout_of(call);
  Backend& chosen = backend(call.device, "send");
  check_capabilities(message, false, capabilities[static_cast<std::size_t>(call.device)], chosen.name());
  check_message(message, false, place);
  message.flight = recorded->recorder.message(message, false);
  return chosen.send(message);
}

Work ProcessGroup::Impl::receive(Message message, const CallOptions& call) {
  check_usable("recv", call.device, false);
  message.timeout = timeout_of(call);
  Backend& chosen = backend(call.device, "recv");
  check_capabilities(message, true, capabilities[static_cast<std::size_t>(call.device)], chosen.name());
  check_message(message, true, place);
  message.flight = recorded->recorder.message(message, true);
  return chosen.receive(message);
}

// The backends first: what a follower is refused from now on is this rank's leaving, and no failure that ends the
// group.
void ProcessGroup::Impl::leave() noexcept {
  for (const auto& each : backends)
    if (each && process == getpid()) each->leave();
  has_left = true;
}

// A follower on the host, whose call cannot be part of the graph, is seen to its end first.
void ProcessGroup::begin_capture() {
  if (running_continuation() != nullptr)
    throw InvalidArgument(
        "rank {}: begin_capture: not in a continuation, which it would wait for: begin behind its Work",
        impl_->place.rank);
  Backend& gpu = impl_->backend(DeviceKind::kCuda, "begin_capture");
  impl_->backend(DeviceKind::kCpu, "begin_capture").await_idle();
  gpu.begin_capture();
  impl_->is_capturing = true;
}

ProcessGroup::CapturedCalls ProcessGroup::end_capture() {
  const std::uint64_t hash = impl_->backend(DeviceKind::kCuda, "end_capture").end_capture();
  impl_->is_capturing = false;
  const CapturedCalls calls{hash, ++impl_->graphs};
  const Operation captured =
      impl_->number_graph(calls, {.purpose = {"captured graph", calls.index}}, FlightRecorder::By::kCaller);
  try {
    impl_->backend(DeviceKind::kCpu, "end_capture").run(captured);
  } catch (...) {
    flight::note_failed(captured.flight);
    throw;
  }
  flight::note_finished(captured.flight);
  return calls;
}

void ProcessGroup::drop_capture() noexcept {
  if (!impl_->is_capturing.exchange(false)) return;
  impl_->backends[static_cast<std::size_t>(DeviceKind::kCuda)]->end_capture();
}

Work ProcessGroup::replayed(const CapturedCalls& calls, const CallOptions& options) {
  CallOptions call = options;
  call.device = DeviceKind::kCuda;
  const Operation replay = impl_->number_graph(calls, call, FlightRecorder::By::kLater);
  try {
    return impl_->backend(DeviceKind::kCuda, "replayed").start_replay(replay);
  } catch (...) {
    flight::note_failed(replay.flight);
    throw;
  }
}

void ProcessGroup::all_reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllReduce, {send, receive, count, dtype, op}, call);
}

Work ProcessGroup::all_reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllReduce, {send, receive, count, dtype, op}, call);
}

void ProcessGroup::reduce(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
                          const CallOptions& call) {
  impl_->run(OperationKind::kReduce, {send, receive, count, dtype, op, root}, call);
}

Work ProcessGroup::reduce_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op, int root,
                                const CallOptions& call) {
  return impl_->start(OperationKind::kReduce, {send, receive, count, dtype, op, root}, call);
}

void ProcessGroup::broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& call) {
  impl_->run(OperationKind::kBroadcast, {data, data, count, dtype, ReduceOp::kSum, root}, call);
}

Work ProcessGroup::broadcast_async(void* data, std::size_t count, DType dtype, int root, const CallOptions& call) {
  return impl_->start(OperationKind::kBroadcast, {data, data, count, dtype, ReduceOp::kSum, root}, call);
}

void ProcessGroup::all_gather(const void* send, void* receive, std::size_t count, DType dtype,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllGather, {send, receive, count, dtype}, call);
}

Work ProcessGroup::all_gather_async(const void* send, void* receive, std::size_t count, DType dtype,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllGather, {send, receive, count, dtype}, call);
}

void ProcessGroup::gather(const void* send, void* receive, std::size_t count, DType dtype, int root,
                          const CallOptions& call) {
  impl_->run(OperationKind::kGather, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

Work ProcessGroup::gather_async(const void* send, void* receive, std::size_t count, DType dtype, int root,
                                const CallOptions& call) {
  return impl_->start(OperationKind::kGather, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

void ProcessGroup::scatter(const void* send, void* receive, std::size_t count, DType dtype, int root,
                           const CallOptions& call) {
  impl_->run(OperationKind::kScatter, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

Work ProcessGroup::scatter_async(const void* send, void* receive, std::size_t count, DType dtype, int root,
                                 const CallOptions& call) {
  return impl_->start(OperationKind::kScatter, {send, receive, count, dtype, ReduceOp::kSum, root}, call);
}

void ProcessGroup::reduce_scatter(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                                  const CallOptions& call) {
  impl_->run(OperationKind::kReduceScatter, {send, receive, count, dtype, op}, call);
}

Work ProcessGroup::reduce_scatter_async(const void* send, void* receive, std::size_t count, DType dtype, ReduceOp op,
                                        const CallOptions& call) {
  return impl_->start(OperationKind::kReduceScatter, {send, receive, count, dtype, op}, call);
}

void ProcessGroup::all_to_all(const void* send, void* receive, std::size_t count, DType dtype,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllToAll, {send, receive, count, dtype}, call);
}

Work ProcessGroup::all_to_all_async(const void* send, void* receive, std::size_t count, DType dtype,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllToAll, {send, receive, count, dtype}, call);
}

// Passes may make no call of their own, as under a hook that leaves gradients where they are: one comparison stands for
// all of them.
void ProcessGroup::compare_with_next_call(const PassState& state) {
  PassState& next = impl_->next_pass;
  const bool is_same = next.wrapper == state.wrapper && next.pass == state.pass;
  const std::uint64_t earlier = is_same ? next.earlier : hash_of(next);
  next = state;
  next.earlier = earlier;
}

std::uint32_t ProcessGroup::count_wrapper() { return ++impl_->wrappers; }

void ProcessGroup::barrier(const CallOptions& call) { impl_->run(OperationKind::kBarrier, {}, call); }

Work ProcessGroup::barrier_async(const CallOptions& call) { return impl_->start(OperationKind::kBarrier, {}, call); }

void ProcessGroup::all_gather(const void* send, void* receive, Counts counts, DType dtype, const CallOptions& call) {
  impl_->run(OperationKind::kAllGatherV, gathered(send, receive, counts, dtype), call);
}

Work ProcessGroup::all_gather_async(const void* send, void* receive, Counts counts, DType dtype,
                                    const CallOptions& call) {
  return impl_->start(OperationKind::kAllGatherV, gathered(send, receive, counts, dtype), call);
}

void ProcessGroup::all_to_all(const void* send, Counts send_counts, void* receive, Counts receive_counts, DType dtype,
                              const CallOptions& call) {
  impl_->run(OperationKind::kAllToAllV, exchanged(send, send_counts, receive, receive_counts, dtype), call);
}

Work ProcessGroup::all_to_all_async(const void* send, Counts send_counts, void* receive, Counts receive_counts,
                                    DType dtype, const CallOptions& call) {
  return impl_->start(OperationKind::kAllToAllV, exchanged(send, send_counts, receive, receive_counts, dtype), call);
}

void ProcessGroup::all_reduce_coalesced(std::span<const Region> buffers, DType dtype, ReduceOp op,
                                        const CallOptions& call) {
  impl_->run(OperationKind::kAllReduce, coalesced(buffers, dtype, op, -1), call);
}

Work ProcessGroup::all_reduce_coalesced_async(std::span<const Region> buffers, DType dtype, ReduceOp op,
                                              const CallOptions& call) {
  return impl_->start(OperationKind::kAllReduce, coalesced(buffers, dtype, op, -1), call);
}

void ProcessGroup::broadcast_coalesced(std::span<const Region> buffers, DType dtype, int root,
                                       const CallOptions& call) {
  impl_->run(OperationKind::kBroadcast, coalesced(buffers, dtype, ReduceOp::kSum, root), call);
}

Work ProcessGroup::broadcast_coalesced_async(std::span<const Region> buffers, DType dtype, int root,
                                             const CallOptions& call) {
  return impl_->start(OperationKind::kBroadcast, coalesced(buffers, dtype, ReduceOp::kSum, root), call);
}

void ProcessGroup::send(const void* data, std::size_t count, DType dtype, int to, int tag, const CallOptions& call) {
  send_async(data, count, dtype, to, tag, call).wait();
}

Work ProcessGroup::send_async(const void* data, std::size_t count, DType dtype, int to, int tag,
                              const CallOptions& call) {
  return impl_->send({const_cast<void*>(data), count, dtype, to, tag}, call);
}

int ProcessGroup::recv(void* data, std::size_t count, DType dtype, int from, int tag, const CallOptions& call) {
  int sender = from;
  recv_async(data, count, dtype, from, tag, &sender, call).wait();
  return sender;
}

Work ProcessGroup::recv_async(void* data, std::size_t count, DType dtype, int from, int tag, int* sender,
                              const CallOptions& call) {
  return impl_->receive({data, count, dtype, from, tag, sender}, call);
}

}  // namespace lockstep
