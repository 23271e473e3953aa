// Comm hooks that send less: `DistributedDataParallel ddp(model, group, {.comm_hook = hooks::bf16()})`.
// docs/comm_hooks.md describes when each one pays off. They compress and expand on the communication thread (GPU: on
// the stream of the collectives), in registered memory allocated in the first pass; later passes neither copy nor
// allocate anything else. `next` sends the hook's messages, so hooks can be combined. An unsupported combination, and
// gradients that a hook does not support, throw InvalidArgument on all ranks when the module is wrapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/reduce/comm_hook.h"

#pragma GCC visibility push(default)
namespace lockstep::hooks {

// Sends float32 as bfloat16: half the bytes, 8 significant bits, the range of float32. Passes 16-bit buckets to `next`
// unchanged. CPU, GPU; can be captured.
CommHook bf16(CommHook next = {});
// The same with float16: 11 significant bits. Without `next`, values are divided by the number of ranks before they are
// sent, so that sums stay below 65,520; larger gradients become infinite.
CommHook fp16(CommHook next = {});

struct Int8Options {
  std::size_t block = 256;  // values that share a scale; a multiple of 16
};
// Sends each block as int8 with a float32 scale (its largest magnitude / 127), in two calls: slices to the ranks that
// sum them in float32, then the averages, rounded to int8 again, to all ranks. A quarter of the bytes, plus 4 / block
// of them for scales. The error of an average is at most 1/254 of the mean of the ranks' largest magnitudes in its
// block, plus 1/254 of the largest magnitude of the block's averages. CPU, GPU; float32; can be captured.
CommHook int8(const Int8Options& options = {});

struct PowerSgdOptions {
  std::int64_t matrix_rank = 1;    // columns of the factors
  std::int64_t start_step = 1000;  // number of averaged passes before compression begins
  bool warm_start = true;          // start each pass from the last pass's factor instead of a random one
  bool error_feedback = true;      // add the compression error of a pass to the next pass's gradient
  double min_compression = 2;      // parameters that would shrink less than this factor are sent uncompressed
  std::uint64_t seed = 0;
  CommHook next = {};  // sends the factors, and plain averages before start_step
};
// PowerSGD (Vogels, Karimireddy, Jaggi 2019, algorithm 1). A gradient M, whose rows are its first dimension, is
// averaged as P Q^T: P = M Q is averaged and orthogonalised, then Q = M^T P is averaged. One-dimensional parameters are
// sent uncompressed, together with P. State: per parameter the error and Q; the step. CPU, GPU; float32.
CommHook power_sgd(const PowerSgdOptions& options = {});

struct TopKOptions {
  double ratio = 0.01;         // share of a parameter's elements that is sent, at least one element
  bool error_feedback = true;  // as in PowerSgdOptions
};
// Sends the k largest magnitudes of each rank's gradient, with their positions, to all ranks, which average them. Each
// rank receives 8 k (ranks - 1) bytes. State: per parameter the error. CPU, GPU; float32; can be captured.
CommHook top_k(const TopKOptions& options = {});

// Each rank keeps its own gradients. With PeriodicModelAverager (ddp/model_averager.h) this is local SGD; alone, it is
// training without communication.
CommHook no_op();

struct PostLocalSgdOptions {
  std::int64_t start_step = 100;                     // passes averaged by `next` before the ranks train locally
  std::shared_ptr<ProcessGroup> subgroup = nullptr;  // then averages gradients, e.g. within a node; null: no averaging
  CommHook next = {};
};
// Post-local SGD (Lin, Stich, Patel, Jaggi 2018), with PeriodicModelAverager's `warmup_steps` = start_step. State: the
// step.
CommHook post_local_sgd(const PostLocalSgdOptions& options = {});

}  // namespace lockstep::hooks
#pragma GCC visibility pop
