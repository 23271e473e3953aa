#include "bench/lib/strategy_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/train/strategies.h"

namespace lockstep::bench {

namespace {

// The arguments of a strategy's formula.
struct Step {
  const StrategyAssumptions& assumed;
  Cluster cluster;
  int gpus, machines;

  double all_reduce(double bytes) const { return all_reduce_us(Algorithm::kHierarchical, cluster, gpus, bytes); }
  int per_machine() const { return gpus / machines; }
};

// A step whose buckets take reduce_us(bytes) each, hidden behind backward as far as .overlap says.
double overlapped_us(const StrategyAssumptions& assumed, const std::function<double(double bytes)>& reduce_us) {
  const TrainingStep step{assumed.compute_us, assumed.gradient_bytes, assumed.bucket_bytes};
  double after = assumed.compute_us;
  for (double left = assumed.gradient_bytes; left > 0; left -= assumed.bucket_bytes)
    after += reduce_us(std::min(left, assumed.bucket_bytes));
  return assumed.overlap * step_us(step, reduce_us) + (1 - assumed.overlap) * after;
}

double ddp_us(const Step& step) {
  return overlapped_us(step.assumed, [&](double bytes) { return step.all_reduce(bytes); });
}

double zero_us(const Step& step) {
  return overlapped_us(step.assumed, [&](double bytes) { return step.all_reduce(bytes) / 2; }) +
         step.all_reduce(step.assumed.gradient_bytes) / 2;
}

double local_sgd_us(const Step& step) {
  return step.assumed.compute_us + step.all_reduce(step.assumed.gradient_bytes) / step.assumed.average_period;
}

double data_parallel_us(const Step& step) {
  const StrategyAssumptions& assumed = step.assumed;
  const auto us = [&](double bytes) { return step.cluster.local.us(bytes); };
  return assumed.compute_us +
         (step.gpus - 1) * (2 * us(assumed.gradient_bytes) + us(assumed.samples * assumed.input_bytes) +
                            2 * us(assumed.samples * assumed.output_bytes));
}

double towers_us(const Step& step) {
  return step.assumed.compute_us + 2 * step.gpus * step.cluster.local.us(step.assumed.gradient_bytes);
}

double parameter_server_us(const Step& step) {
  const double bytes = step.assumed.gradient_bytes,
               servers = step.assumed.servers == 0 ? step.machines : step.assumed.servers;
  const double own = step.per_machine(), others = step.gpus - step.per_machine();
  double phase = step.cluster.local.us(own * bytes / servers);
  if (step.machines == 1) phase = step.cluster.local.us(step.gpus * bytes / servers);
  if (step.machines > 1)
    phase = std::max({phase, step.cluster.net.us(others * bytes / servers),
                      step.cluster.net.us(own * bytes * (servers - 1) / servers)});
  return step.assumed.compute_us + 2 * phase;
}

double model_parallel_us(const Step& step) {
  const StrategyAssumptions& assumed = step.assumed;
  const Link& slowest = step.machines > 1 ? step.cluster.net : step.cluster.local;
  const double parts = assumed.micro_batches, compute = assumed.compute_us / parts;
  const double wire =
      step.gpus == 1 ? 0 : 2 * slowest.us(step.gpus * assumed.samples * assumed.activation_bytes / parts);
  const double slot = assumed.overlap * std::max(compute, wire) + (1 - assumed.overlap) * (compute + wire);
  return (parts + step.gpus - 1) * slot;
}

struct StrategyFormula {
  const char* strategy;
  double (*us)(const Step& step);
};
constexpr StrategyFormula kFormulas[] = {
    {"ddp", ddp_us},
    {"mirrored", ddp_us},
    {"zero", zero_us},
    {"local_sgd", local_sgd_us},
    {"towers", towers_us},
    {"data_parallel", data_parallel_us},
    {"parameter_server", parameter_server_us},
    {"model_parallel", model_parallel_us},
};

}  // namespace

bool spans_machines(const std::string& strategy) {
  const train::StrategyCapabilities& can = train::strategy_named(strategy).capabilities;
  return can.has_ranks || can.has_stages;
}

double strategy_step_us(const std::string& strategy, const StrategyAssumptions& assumed, const Link& local,
                        const Link& net, const GpuJob& job) {
  if (job.machines > 1 && !spans_machines(strategy))
    throw InvalidArgument("{}: one process drives all GPUs, so {} machines cannot be modelled", strategy, job.machines);
  LOCKSTEP_CHECK(job.machines >= 1 && job.gpus % job.machines == 0, "{} GPUs on {} machines", job.gpus, job.machines);
  const auto found = std::find_if(std::begin(kFormulas), std::end(kFormulas),
                                  [&](const StrategyFormula& each) { return each.strategy == strategy; });
  train::strategy_named(strategy);  // throws for a name that is unknown
  LOCKSTEP_CHECK(found != std::end(kFormulas), "strategy '{}' has no formula", strategy);
  return found->us({assumed, {local, net, job.gpus / job.machines}, job.gpus, job.machines});
}

double busiest_bytes(const std::string& strategy, const StrategyAssumptions& assumed, int gpus, int servers) {
  const double n = gpus, bytes = assumed.gradient_bytes, all_reduce = 4 * (n - 1) / n * bytes;
  if (strategy == "local_sgd") return all_reduce / assumed.average_period;
  if (strategy == "data_parallel") return 2 * (n - 1) * (bytes + assumed.samples * assumed.output_bytes);
  if (strategy == "towers") return 2 * n * bytes;
  if (strategy == "parameter_server") return 2 * n * bytes / servers;
  if (strategy == "model_parallel")  // a stage in the middle has two boundaries
    return 2 * std::min(n - 1, 2.0) * n * assumed.samples * assumed.activation_bytes;
  train::strategy_named(strategy);  // throws for a name that is unknown
  return all_reduce;
}

double equal_gbps(const std::string& strategy, const StrategyAssumptions& assumed_of_few,
                  const StrategyAssumptions& assumed_of_many, const Link& local, const Link& net, const GpuJob& few,
                  const GpuJob& many) {
  const double needed = few.gpus * assumed_of_few.samples / strategy_step_us(strategy, assumed_of_few, local, net, few);
  const auto is_enough = [&](double gbps) {
    const Link wire{net.alpha_us, gbps};
    return many.gpus * assumed_of_many.samples / strategy_step_us(strategy, assumed_of_many, local, wire, many) >=
           needed;
  };
  double low = 1e-6, high = 1e6;
  if (is_enough(low)) return 0;
  if (!is_enough(high)) return std::numeric_limits<double>::infinity();
  while (high / low > 1 + 1e-9) (is_enough(std::sqrt(low * high)) ? high : low) = std::sqrt(low * high);
  return high;
}

}  // namespace lockstep::bench
