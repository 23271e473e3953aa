// The time of a training step by each strategy of train::strategies(), in a model: a report of assumptions, not a
// promise. cost_model.h has the terms and the all-reduce.
//
// n GPUs on M machines, n / M on each. A GPU needs C for its samples; G bytes of gradients, and as many of weights.
// us(link, m) = a + m b. What travels is what the files of the strategies say (src/train/strategies):
//
//   ddp, mirrored     buckets are all-reduced during backward (step_us), hierarchically: 2 (n-1)/n G to and from each
//   zero              the reduce-scatter of the buckets during backward, half an all-reduce; and after the update the
//                     all-gather of the weights, the other half
//   local_sgd         C + all_reduce(G) / period
//   data_parallel     C + (n-1) (2 us(G) + us(inputs) + 2 us(outputs)), one after the other through device 0
//   towers            C + 2 n us(G), through the device of the variables
//   parameter_server  C + 2 phase; a server on each of P machines has G/P of the weights, which n workers fetch in one
//                     phase and whose gradients they send in another. In a phase a machine with a server sends (n -
//                     n/M) G/P to the workers of other machines, its own workers receive n/M G (P-1)/P from other
//                     servers, and n/M G/P stay inside the machine: phase = the largest of the three times
//   model_parallel    (m + n - 1) slots for m micro-batches in n stages; in a slot a stage computes C/m, and sends a
//                     micro-batch's activations and the gradients of another: 2 us(n samples activation / m) on the
//                     slowest boundary
//
// `overlap` in 0..1 is the share of what could be hidden behind compute that is hidden.
#pragma once

#include <string>

#include "bench/lib/cost_model.h"

namespace lockstep::bench {

struct StrategyAssumptions {
  double compute_us = 0;      // C, of one GPU for `samples`
  double gradient_bytes = 0;  // G
  double bucket_bytes = 0;
  double samples = 0;                                              // of one GPU in a step
  double input_bytes = 0, output_bytes = 0, activation_bytes = 0;  // of a sample
  double overlap = 1;
  int average_period = 4;  // of local_sgd
  int servers = 0;         // of parameter_server, on as many machines; 0: one on each
  int micro_batches = 1;   // of model_parallel
};

struct GpuJob {
  int gpus = 1, machines = 1;  // which divide the GPUs
};

// False for strategies that drive all devices from one process: these have one machine.
bool spans_machines(const std::string& strategy);

// Throws InvalidArgument for a strategy that is not in train::strategies(), and for one of one process on several
// machines.
double strategy_step_us(const std::string& strategy, const StrategyAssumptions& assumed, const Link& local,
                        const Link& net, const GpuJob& job);

// Bytes that the busiest device, or server, sends and receives in a step, without inputs.
double busiest_bytes(const std::string& strategy, const StrategyAssumptions& assumed, int gpus, int servers);

// The bandwidth between machines, in GB/s, at which `many` trains as many samples a second as `few`. 0: at any
// bandwidth it trains more. Infinity: at none.
double equal_gbps(const std::string& strategy, const StrategyAssumptions& assumed_of_few,
                  const StrategyAssumptions& assumed_of_many, const Link& local, const Link& net, const GpuJob& few,
                  const GpuJob& many);

}  // namespace lockstep::bench
