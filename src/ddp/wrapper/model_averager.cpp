#include "lockstep/ddp/model_averager.h"

#include <algorithm>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/ddp/checks/pass_watch.h"
#include "src/ddp/checks/replicas.h"

namespace lockstep {

namespace {

// Parameters that one call can average.
struct Alike {
  DType dtype;
  Device* device;
  std::vector<Region> regions;
};

}  // namespace

PeriodicModelAverager::PeriodicModelAverager(DistributedDataParallel& ddp, const PeriodicModelAveragerOptions& options)
    : ddp_(ddp), options_(options), parameters_(ddp.parameters()) {
  check_same_on_all_ranks(
      ddp.group(), "PeriodicModelAverager",
      {fmt::format("period {}", options.period), fmt::format("warmup_steps {}", options.warmup_steps)},
      "have different options");
  if (options.period < 1 || options.warmup_steps < 0)
    throw InvalidArgument(
        "PeriodicModelAverager: got a period of {} after {} warm-up steps, expected 1 or more after 0 or more",
        options.period, options.warmup_steps);
  PassAccess::in_step(ddp).let_weights_differ();
}

void PeriodicModelAverager::refuse_in_join() const {
  if (ddp_.is_joining())
    throw InvalidArgument(
        "PeriodicModelAverager: called in join(), where ranks have different numbers of steps and make no calls except "
        "the "
        "wrapper's: give the ranks equal numbers of steps (begin_epoch()), or average after join()");
}

bool PeriodicModelAverager::average_parameters() {
  refuse_in_join();
  const std::int64_t after = ++steps_ - options_.warmup_steps;
  if (after <= 0 || after % options_.period != 0) return false;
  average_now();
  return true;
}

void PeriodicModelAverager::average_now() {
  refuse_in_join();
  std::vector<Alike> all;  // in the order of the parameters, the same on all ranks
  for (const auto& [name, tensor] : parameters_) {
    tensor.mark_changed();
    const auto is_alike = [&tensor = tensor](const Alike& each) {
      return each.dtype == tensor.dtype() && each.device == &tensor.device();
    };
    auto found = std::find_if(all.begin(), all.end(), is_alike);
    if (found == all.end()) found = all.insert(all.end(), {tensor.dtype(), &tensor.device(), {}});
    found->regions.push_back({tensor.buffer().data(), static_cast<std::size_t>(tensor.count())});
  }
  for (const Alike& each : all) {
    const Work work = ddp_.group().all_reduce_coalesced_async(
        each.regions, each.dtype, ReduceOp::kAvg, {.purpose = {"averaged parameters"}, .device = each.device->kind()});
    work.stream_wait(each.device->default_stream());
  }
}

}  // namespace lockstep
