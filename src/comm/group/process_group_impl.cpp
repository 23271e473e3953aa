// A process group's calls in general: each is checked, numbered and passed to the backend.
#include "src/comm/group/process_group_impl.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/group/call_chain.h"
#include "src/comm/operation/call_checks.h"

namespace lockstep {

namespace {

std::uint32_t hash_of_name(const char* name) {
  if (name == nullptr) return 0;
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 16777619u;
  return hash;
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
  // A rank that is in its program's code writes its record as well: it may be the one for which the others waited.
  for (const auto& each : backends)
    if (each)
      each->on_over([this, state = ending, record = recorded, over = each.get()](const std::string& why) {
        if (state->is_leaving) return;
        record->recorder.group_failed(why);
        end_all(*state, over, why);
      });
}

// A group ends when the first of its backends ends. `state` may outlive the group.
void ProcessGroup::Impl::end_all(Ending& state, const Backend* over, const std::string& why) {
  if (state.is_over.exchange(true)) return;
  const std::lock_guard lock(state.mutex);
  if (state.is_leaving) return;
  for (const auto& each : backends)
    if (each && each.get() != over) each->abort(why);
}

ProcessGroup::Impl::~Impl() {
  flight::remove(recorded);
  {
    const std::lock_guard lock(ending->mutex);
    ending->is_leaving = true;
  }
  if (process == getpid()) return;
  // A forked child has the group's connections but none of its threads; it must not send a goodbye in its parent's
  // name.
  static auto& parents = *new std::vector<std::unique_ptr<Backend>>;
  for (auto& each : backends) parents.push_back(std::move(each));
}

Backend& ProcessGroup::Impl::backend(DeviceKind kind, std::string_view what) const {
  const auto& found = backends[static_cast<std::size_t>(kind)];
  if (!found)
    throw InvalidArgument(
        "{} on rank {}: the data is on a GPU, and this group's device is the CPU. Move it there "
        "(to(group->local_device())), or make the group with its GPU ({}=cuda)",
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
  if (is_capturing) return operation;  // a call in a graph counts when the graph is launched
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
    throw InvalidArgument("process group on rank {}: got a call timeout of {} ms; expected > 0, or 0 for the group's",
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

// A forked child has none of the threads that do this work.
void ProcessGroup::Impl::finish_work_beside() {
  if (process == getpid())
    for (const auto& end : std::exchange(before_leaving, {})) end();
}

// The backends leave first: a follower that is refused from now on fails because this rank leaves, which must not end
// the group.
void ProcessGroup::Impl::leave() noexcept {
  for (const auto& each : backends)
    if (each && process == getpid()) each->leave();
  has_left = true;
}

// Waits for a follower on the host, whose call cannot be part of the graph.
void ProcessGroup::begin_capture() {
  if (running_continuation() != nullptr)
    throw InvalidArgument(
        "rank {}: begin_capture: called in a continuation, for which it would wait: wait for the continuation's Work "
        "first",
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

}  // namespace lockstep
