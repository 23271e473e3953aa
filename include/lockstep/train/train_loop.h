// A training loop as Slim's learning.train: it runs a step again and again, with logs, summaries and a checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/save_options.h"
#include "lockstep/train/summary_writer.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// run() makes a step and returns its total loss, or nullopt when there are no more samples. train() saves `model` and
// `optimizer` unless they are null.
struct TrainOp {
  std::function<std::optional<float>()> run;
  nn::Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
  // Called with the steps done, 0 or those of the checkpoint, before the first run(): a reader continues there
  // (data::Reader::seek). May be empty.
  std::function<void(std::int64_t steps)> seek = {};
  // Set on a parameter server: train() calls it instead of run() and returns when it returns.
  std::function<void()> serve = {};
  // Called before each checkpoint: brings model and optimizer up to date. May be empty.
  std::function<void()> before_save = {};
  // Called with the reason when train() fails on this process after its start, before it passes the error on: ends the
  // job for all other processes, also for those outside `group`, so that none of them waits. May be empty.
  std::function<void(const std::string& reason)> abort = {};
  // The processes that make the same steps. The first one, the chief, logs and writes summaries; checkpoints are
  // collective. Null: the thread's default group, in a job of one rank.
  std::shared_ptr<ProcessGroup> group = nullptr;
};
using SummaryOp = std::function<void(SummaryWriter& writer, std::int64_t step)>;

struct TrainLoopOptions {
  std::int64_t number_of_steps = 0;  // counted from the first step ever, also before resuming; 0: until samples end
  std::int64_t log_every_n_steps = 10;
  // Summaries: every so many steps, every so many seconds (counted from the last summary), and after the last step.
  std::int64_t save_summaries_steps = 100;      // 0: not by steps
  std::chrono::seconds save_summaries_secs{0};  // 0: not by time; Slim's default is 600
  // Checkpoints: the same, and when a step throws.
  std::int64_t save_interval_steps = 0;
  std::chrono::seconds save_interval_secs{600};
  int max_to_keep = 5;    // newest checkpoints, as TensorFlow's Saver
  SaveOptions save = {};  // .background: train() waits for the last one at its end
};
// Runs steps, logs "global step 10: loss = 0.6931 (0.012 s/step)", writes summaries and checkpoints to
// log_dir/checkpoints (train/checkpoint.h), from which a later call continues. Returns the last loss, or NaN if there
// was nothing to do because number_of_steps have been made already, which it logs. Throws InvalidArgument for negative
// options and a train_op without run, Error if the loss is NaN or infinite, and passes on exceptions of the functions,
// the writer and the checkpoint.
//
// With several processes in .group train() is collective. Before the first step an error of one process is thrown on
// all, and so is a MismatchError if number_of_steps, the save intervals or max_to_keep differ. A later error ends the
// group, as abort_on_error() does (comm/agreement.h), whether the program catches it or not.
//
// If run() throws, train() saves the state after the last complete step and passes the exception on. It saves nothing,
// and logs that, if the failed step has changed the model, the optimizer or a buffer already, and after a loss that is
// not finite. With several processes in .group it saves nothing then, because the others wait in their step.
float train(const TrainOp& train_op, const std::string& log_dir, const SummaryOp& summary_op = {},
            const TrainLoopOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
