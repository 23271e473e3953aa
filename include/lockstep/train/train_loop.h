// A training loop as Slim's learning.train: it runs a step again and again, with logs, summaries and a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/nn/module.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/summary_writer.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// run() makes a step and returns its total loss, or nullopt when there are no more samples. train() saves `model` and
// `optimizer` unless they are null.
struct TrainOp {
  std::function<std::optional<float>()> run;
  nn::Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
};
using SummaryOp = std::function<void(SummaryWriter& writer, std::int64_t step)>;

struct TrainLoopOptions {
  std::int64_t number_of_steps = 0;  // counted from the first step ever, also before resuming; 0: until samples end
  std::int64_t log_every_n_steps = 10;
  std::int64_t save_summaries_steps = 100;  // and after the last one
};
// Runs steps, logs "global step 10: loss = 0.6931 (0.012 s/step)", writes summaries and, at the end, a checkpoint to
// log_dir/checkpoints (train/checkpoint.h), from which a later call continues. Returns the last loss. Throws
// InvalidArgument for negative options and a train_op without run, Error without saving if the loss is NaN or infinite,
// and passes on exceptions of the functions, the writer and the checkpoint.
float train(const TrainOp& train_op, const std::string& log_dir, const SummaryOp& summary_op = {},
            const TrainLoopOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
