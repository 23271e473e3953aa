#include "src/comm/nccl/nccl_backend.h"

#include <utility>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/nccl/nccl_queue.h"
#include "src/comm/nccl/nccl_rendezvous.h"
#include "src/comm/nccl/staged_messages.h"
#include "src/core/device/device_choice.h"

namespace lockstep {

NcclBackend::NcclBackend(const BackendContext& context, std::unique_ptr<Backend> watch, const nccl::Api& api)
    : queue_(std::make_shared<nccl::Queue>(context, std::move(watch), api)),
      carrier_(context.host != nullptr ? *context.host : queue_->watch()),
      messages_(std::make_shared<nccl::StagedMessages>(context.place, *context.device, carrier_)) {}
NcclBackend::~NcclBackend() {
  messages_->stop();
  queue_->stop();
  carrier_.leave();  // releases the memory that it was given
}

Work NcclBackend::start(const Operation& operation) { return nccl::Queue::start(queue_, operation); }
Work NcclBackend::start_chained(const Operation& operation, const Work&) {
  return nccl::Queue::start_chained(queue_, operation);
}
void NcclBackend::await_idle() noexcept { queue_->await_idle(); }
Work NcclBackend::send(const Message& message) { return nccl::StagedMessages::send(messages_, message); }
Work NcclBackend::receive(const Message& message) { return nccl::StagedMessages::receive(messages_, message); }
Buffer NcclBackend::allocate(std::size_t bytes) { return nccl::Queue::allocate(queue_, bytes); }
void NcclBackend::begin_capture() {
  messages_->await_handover();
  queue_->begin_capture();
}
std::uint64_t NcclBackend::end_capture() { return queue_->end_capture(); }
Work NcclBackend::start_replay(const Operation& replay) { return nccl::Queue::start_replay(queue_, replay); }

// The queue's thread gets the error from the failure detector, and so does the next call.
void NcclBackend::abort(const std::string& reason) { queue_->watch().abort(reason); }
void NcclBackend::throw_if_over(const std::function<std::string()>& doing) { queue_->watch().throw_if_over(doing); }
void NcclBackend::leave() noexcept { queue_->watch().leave(); }
void NcclBackend::on_over(std::function<void(const std::string&)> call) { queue_->watch().on_over(std::move(call)); }

namespace {

// Why this rank computes on the CPU, as far as it is known.
std::string why_no_gpu() {
  const std::string choice = env::text(env::kDevice).value_or("auto");
  if (choice == "cpu") return fmt::format("{}=cpu", env::kDevice);
  try {
    const GpuSearch found = find_gpus();
    return found.gpus.empty() ? found.why_none : "its device was chosen by the program";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

void check_gpu_and_nccl(const Place& place, const Device* device) {
  const Device& own = device != nullptr ? *device : local_device(place.local_rank);
  if (own.kind() != DeviceKind::kCuda)
    throw InvalidArgument("backend 'nccl' is for GPUs, and rank {} computes on {} ({}): use {}=host on the CPU",
                          place.rank, own.name(), why_no_gpu(), env::kBackend);
  try {
    nccl::api();
  } catch (const Error& error) {
    throw InvalidArgument("backend 'nccl' of rank {}: {}", place.rank, error.what());
  }
}

std::unique_ptr<Backend> make_nccl_backend(const BackendContext& given, MakeBackend make_host, const nccl::Api& api) {
  BackendContext context = given;
  if (context.device == nullptr) context.device = &local_device(context.place.local_rank);
  const auto gpus = nccl::gather_gpus(context);
  nccl::check_sharing(gpus);
  nccl::check_algorithms(gpus);
  nccl::prepare_environment(gpus, context.place.rank, api.version);
  BackendContext watch = context;
  watch.store = scoped(context.store, "nccl/watch/");
  return std::make_unique<NcclBackend>(context, make_host(watch), api);
}

std::unique_ptr<Backend> make_nccl_backend(const BackendContext& context, MakeBackend make_host) {
  check_gpu_and_nccl(context.place, context.device);
  return make_nccl_backend(context, make_host, nccl::api());
}

}  // namespace lockstep
