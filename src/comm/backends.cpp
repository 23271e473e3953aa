// The list of backends: the only place in comm/ that knows which ones are in the build, and their capabilities.
#include <algorithm>
#include <span>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/group/backend_choice.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/testing/delay_backend.h"
#include "src/comm/testing/recording_backend.h"
#if LOCKSTEP_WITH_MPI
#include "src/comm/mpi/mpi_backend.h"
#endif
#if LOCKSTEP_WITH_NCCL
#include "src/comm/nccl/nccl_backend.h"
#endif

namespace lockstep {

namespace {

constexpr Capabilities kHost{.messages = true,
                             .moves_data = true,
                             .same_bits_on_all_ranks = true,
                             .repeatable_bits = true,
                             .sums_in_rank_order = true,
                             .coalesced_equals_single = true,
                             .idle_waiting = true,
                             .abort = true,
                             .names_lost_peers = true,
                             .counts_bytes = true,
                             .ranks_may_be_threads = true};
#if LOCKSTEP_WITH_MPI
constexpr Capabilities kMpi{.messages = true,
                            .moves_data = true,
                            .same_bits_on_all_ranks = true,
                            .repeatable_bits = true,
                            .coalesced_equals_single = true};
#endif
#if LOCKSTEP_WITH_NCCL
constexpr Capabilities kNccl{
    .reductions = SetOf<ReduceOp>::first(kReduceOps).without({ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}),
    .messages = true,
    .moves_data = true,
    .same_bits_on_all_ranks = true,
    .repeatable_bits = true,  // with LOCKSTEP_DETERMINISTIC=1, else without NVLink SHARP
    .abort = true,
    .names_lost_peers = true,
    .ranks_may_be_threads = true,
    .gpu_memory = true};
#endif
constexpr Capabilities kLocal{.messages = true,
                              .same_bits_on_all_ranks = true,
                              .repeatable_bits = true,
                              .sums_in_rank_order = true,
                              .coalesced_equals_single = true,
                              .idle_waiting = true,
                              .abort = true,
                              .ranks_may_be_threads = true,
                              .most_ranks = 1};
constexpr Capabilities kDelay{.same_bits_on_all_ranks = true,
                              .repeatable_bits = true,
                              .sums_in_rank_order = true,
                              .coalesced_equals_single = true,
                              .idle_waiting = true,
                              .abort = true,
                              .ranks_may_be_threads = true,
                              .most_ranks = 1};

constexpr std::string_view kHostName = "host", kFormerHostName = "ring", kGloo = "gloo", kLocalName = "local",
                           kNcclName = "nccl";

std::string_view default_name(const Place& place) { return place.world_size > 1 ? kHostName : kLocalName; }

std::unique_ptr<Backend> make_recording_backend(const BackendContext& context) {
  return std::make_unique<RecordingBackend>(make_backend(default_name(context.place), context));
}

struct BuiltIn {
  std::string_view name;
  std::unique_ptr<Backend> (*make)(const BackendContext&);
  const Capabilities& capabilities;
  void (*check)(const Place&, const Device*) = nullptr;  // further requirements on this process
};
constexpr BuiltIn kBackends[] = {
    {kHostName, [](const BackendContext& context) { return make_host_backend(context); }, kHost},
#if LOCKSTEP_WITH_MPI
    {"mpi", [](const BackendContext& context) { return make_mpi_backend(context); }, kMpi,
     [](const Place& place, const Device*) { check_started_by_mpi(place); }},
#endif
#if LOCKSTEP_WITH_NCCL
    {kNcclName, [](const BackendContext& context) { return make_nccl_backend(context, make_host_backend); }, kNccl,
     check_gpu_and_nccl},
#endif
    {kLocalName, [](const BackendContext&) { return make_local_backend(); }, kLocal},
    {"delay",
     [](const BackendContext&) -> std::unique_ptr<Backend> {
       return std::make_unique<DelayBackend>(delay_cost_from_environment());
     },
     kDelay},
    {"recording", make_recording_backend, kHost},  // wraps the default backend
};

std::string listed() {
  std::string names;
  for (const BuiltIn& each : kBackends) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

void log_meaning_of_gloo() {
  static const bool kLogged = [] {
    log::info("backend 'gloo' means Lockstep's 'host', which does the same work on CPUs; Gloo itself is not used");
    return true;
  }();
  static_cast<void>(kLogged);
}

const BuiltIn& find(std::string_view name) {
  if (name == kFormerHostName || name == kGloo) name = kHostName;  // gloo: PyTorch's name for the CPU's backend
  const auto found = std::find_if(std::begin(kBackends), std::end(kBackends),
                                  [name](const BuiltIn& each) { return each.name == name; });
  if (found != std::end(kBackends)) return *found;
  if (name == "mpi")
    throw InvalidArgument(
        "backend 'mpi' is not in this build: install Open MPI's headers (libopenmpi-dev) and configure with "
        "-Dmpi=enabled; built in are {}",
        listed());
  if (name == kNcclName)
    throw InvalidArgument(
        "backend 'nccl' is not in this build: install the headers of NCCL and CUDA (libnccl-dev) and configure with "
        "-Dnccl=enabled, or use {}=host on the CPU; built in are {}",
        env::kBackend, listed());
  throw InvalidArgument("unknown backend '{}': LOCKSTEP_BACKEND is one of {}; gloo, PyTorch's, is understood as host",
                        name, listed());
}

}  // namespace

std::vector<std::string_view> backend_names() {
  std::vector<std::string_view> names;
  for (const BuiltIn& each : kBackends) names.push_back(each.name);
  return names;
}

const Capabilities& capabilities_of(std::string_view backend) { return find(backend).capabilities; }

void check_backend(std::string_view name, const Place& place, const Device* device) {
  const BuiltIn& chosen = find(name);
  if (place.world_size > chosen.capabilities.most_ranks)
    throw InvalidArgument("backend '{}' moves no data: it is for a world of one, this one has {} ranks", name,
                          place.world_size);
  if (chosen.check) chosen.check(place, device);
}

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendContext& context) {
  check_backend(name, context.place, context.device);
  return find(name).make(context);
}

BackendChoice choose_backends(const Place& place, const std::string& asked, const Device& device) {
  const std::string default_host(default_name(place));
  BackendChoice choice{asked.empty() ? env::text(env::kBackend).value_or(default_host) : asked, ""};
  if (choice.host == kGloo) {  // from here on the name that all ranks compare
    if (place.rank == 0) log_meaning_of_gloo();
    choice.host = kHostName;
  }
  const bool has_gpu = device.kind() == DeviceKind::kCuda;
  if (choice.host == kNcclName || (has_gpu && place.world_size > 1))
    check_backend(choice.gpu = kNcclName, place, &device);
  if (choice.gpu.empty() && has_gpu) choice.gpu = kLocalName;
  if (choice.host == kNcclName) choice.host = default_host;
  // A job that is sometimes started with one rank must not need another environment for it.
  if (asked.empty() && place.world_size == 1 && find(choice.host).name == kHostName) choice.host = kLocalName;
  check_backend(choice.host, place, &device);
  return choice;
}

Backends make_backends(const BackendChoice& choice, BackendContext context) {
  Backends made{make_backend(choice.host, context), nullptr};
  context.host = made[static_cast<std::size_t>(DeviceKind::kCpu)].get();
  auto& on_gpu = made[static_cast<std::size_t>(DeviceKind::kCuda)];
  if (choice.gpu == kLocalName)
    on_gpu = make_local_backend(*context.device);
  else if (!choice.gpu.empty())
    on_gpu = make_backend(choice.gpu, context);
  return made;
}

const Capabilities& Backend::capabilities() const { return capabilities_of(name()); }

void Backend::compare(const Operation& operation) {
  LOCKSTEP_CHECK(false, "backend '{}' cannot compare {}", name(), name_of(operation.signature.kind));
}

namespace {
[[noreturn]] void refuse_graphs(std::string_view backend) {
  throw InvalidArgument("backend '{}' runs on the host: its calls cannot be part of a GPU's graph", backend);
}
}  // namespace

void Backend::begin_capture() { refuse_graphs(name()); }
std::uint64_t Backend::end_capture() { refuse_graphs(name()); }
Work Backend::start_replay(const Operation&) { refuse_graphs(name()); }

Work Backend::send(const Message& message) {
  throw InvalidArgument("{}: backend '{}' does not support messages", describe_send(message), name());
}
Work Backend::receive(const Message& message) {
  throw InvalidArgument("{}: backend '{}' does not support messages", describe_receive(message), name());
}

}  // namespace lockstep
