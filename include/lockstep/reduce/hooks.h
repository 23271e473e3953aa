// Comm hooks that send less: `DistributedDataParallel ddp(model, group, {.comm_hook = hooks::bf16()})`.
// docs/comm_hooks.md says when each pays. They compress and expand on the communication thread (a GPU: on the stream of
// the collectives), in registered memory that they allocate in the first pass; later passes copy and allocate nothing
// else. `next` sends what a hook made: hooks stand on each other. A pair that cannot be, and gradients that a hook
// cannot take, are InvalidArgument on all ranks when the module is wrapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/reduce/comm_hook.h"

#pragma GCC visibility push(default)
namespace lockstep::hooks {

// Float32 travels as bfloat16: half the bytes, 8 significant bits, the range of float32. Buckets of 16 bits go to
// `next` as they are. CPU, GPU; can be captured.
CommHook bf16(CommHook next = {});
// The same as float16: 11 significant bits. Without `next` values are divided by the number of ranks before they are
// sent, so that sums stay below 65,520; gradients above that become infinite.
CommHook fp16(CommHook next = {});

struct Int8Options {
  std::size_t block = 256;  // values that share a scale; a multiple of 16
};
// Each block as int8 with a float32 scale (its largest magnitude / 127), in two calls: slices to the ranks that sum
// them, in float32, and the sums, rounded to int8 again, to all. A quarter of the bytes, and 4 / block of them for
// scales. An average is off by at most 1/254 of the mean of the ranks' largest magnitudes in its block, and 1/254 of
// the average's own. CPU, GPU; float32; can be captured.
CommHook int8(const Int8Options& options = {});

struct PowerSgdOptions {
  std::int64_t matrix_rank = 1;    // columns of the factors
  std::int64_t start_step = 1000;  // passes that are averaged before it begins
  bool warm_start = true;          // a pass begins with the factor of the one before, not with a random one
  bool error_feedback = true;      // what a pass left out is added to the next one's gradient
  double min_compression = 2;      // parameters that would not shrink by this factor travel whole
  std::uint64_t seed = 0;
  CommHook next = {};  // sends the factors; plain averages up to start_step as well
};
// PowerSGD (Vogels, Karimireddy, Jaggi 2019, algorithm 1): a gradient M (rows: the first dimension) is averaged as P
// Q^T: P = M Q is averaged and orthogonalised, then Q = M^T P averaged. Parameters of one dimension travel whole,
// beside P. State by parameter: error, Q; the step. CPU, GPU; float32.
CommHook power_sgd(const PowerSgdOptions& options = {});

struct TopKOptions {
  double ratio = 0.01;         // of a parameter's gradient the largest magnitudes: at least one
  bool error_feedback = true;  // as above
};
// The k largest magnitudes of each rank's gradient, with their places, to all ranks, which average them: 8 k (ranks -
// 1) bytes received. State by parameter: error. CPU, GPU; float32; can be captured.
CommHook top_k(const TopKOptions& options = {});

// Each rank keeps its own gradients: with PeriodicModelAverager (ddp/model_averager.h), local SGD. Alone: a training
// without communication.
CommHook no_op();

struct PostLocalSgdOptions {
  std::int64_t start_step = 100;  // passes that are averaged by `next` before ranks go on by themselves
  std::shared_ptr<ProcessGroup> subgroup =
      nullptr;  // then gradients are averaged in it, a node's ranks for instance; null: not at all
  CommHook next = {};
};
// Post-local SGD (Lin, Stich, Patel, Jaggi 2018), with PeriodicModelAverager's `warmup_steps` = start_step. State: the
// step.
CommHook post_local_sgd(const PostLocalSgdOptions& options = {});

}  // namespace lockstep::hooks
#pragma GCC visibility pop
