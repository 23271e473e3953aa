// The accuracy of a training by cifar10 --recipe classic on the test set, with the moving averages of its variables. It
// evaluates the newest checkpoint (--run-once), or each new one while the training runs:
//
//   build/examples/cifar10_eval --data data --train-dir cifar10_train
//
// It prints for each checkpoint a line such as
//
//   2026-01-31 12:00:00.000000: precision @ 1 = 0.862 (step 100000, 10000 images)
//
// It may also run on several ranks: lockrun -n 2 build/examples/cifar10_eval ...
#include <chrono>
#include <optional>
#include <thread>

#include "examples/cifar10/classic_net.h"
#include "examples/cifar10/data.h"
#include "examples/cifar10/lines.h"
#include "examples/lib/dashed_flags.h"
#include "examples/lib/training.h"

namespace ls = lockstep;
namespace ex = lockstep::examples;

namespace {

struct EvalFlags {
  std::string data, train_dir = "cifar10_train", eval_dir;
  std::int64_t num_examples = 10'000, until_step = 0;
  double interval_secs = 300;
  bool generated = false, run_once = false;
};

bool read_eval_flags(int argc, char** argv, EvalFlags& flags) {
  cxxopts::Options options("cifar10_eval", "Evaluates the moving averages of a training by cifar10 --recipe classic.");
  auto add = options.add_options();
  add("data", "folder with test_batch.bin; else LOCKSTEP_DATA", cxxopts::value(flags.data)->default_value(""));
  add("generated", "evaluate on the generated set even if there is data", cxxopts::value(flags.generated));
  add("train-dir", "folder of the training's checkpoints",
      cxxopts::value(flags.train_dir)->default_value(flags.train_dir));
  add("eval-dir", "folder for event files (empty: none)", cxxopts::value(flags.eval_dir)->default_value(""));
  add("run-once", "evaluate the newest checkpoint and exit", cxxopts::value(flags.run_once));
  add("eval-interval-secs", "seconds between two checks for a newer one",
      cxxopts::value(flags.interval_secs)->default_value("300"));
  add("until-step", "end after a checkpoint of this step or a later one (0: never)",
      cxxopts::value(flags.until_step)->default_value("0"));
  add("num-examples", "number of images, from the first on",
      cxxopts::value(flags.num_examples)->default_value("10000"));
  add("help", "print this text");
  ls::examples::DashedFlags dashed(argc, argv);
  if (!ex::parse_flags(options, argc, dashed.argv())) return false;
  if (flags.num_examples < 1 || flags.until_step < 0 || !(flags.interval_secs >= 0) || flags.interval_secs > 1e6)
    throw ls::InvalidArgument(
        "--num-examples must be positive, --until-step and --eval-interval-secs must not be negative (at most 1e6 s)");
  return true;
}

void wait_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The training removes old checkpoints. If that happens while one is being read, the load fails, and a newer one
// exists.
std::optional<ls::train::CheckpointState> load_newest(const std::string& folder,
                                                      const ls::train::CheckpointParts& parts) {
  constexpr int kTries = 5;
  for (int attempt = 1;; ++attempt) {
    try {
      return ls::train::load_checkpoint(folder, parts);
    } catch (const ls::FileError&) {
      if (attempt == kTries) throw;
    }
    wait_seconds(0.1);
  }
}

class Evaluation {
 public:
  Evaluation(const EvalFlags& flags, ls::ProcessGroup& group)
      : flags_(flags),
        group_(group),
        lines_({.enabled = group.rank() == 0}),
        data_(open_data({.folder = flags.data, .generated = flags.generated, .augment = false})),
        test_(take(*data_.test, std::min(flags.num_examples, data_.test->size()))),
        writer_(flags.eval_dir.empty() ? ls::train::SummaryWriter::none() : ls::train::SummaryWriter(flags.eval_dir)) {
    net_.to(group.local_device());
  }

  void run() {
    ls::optim::ExponentialMovingAverage averages(net_.named_parameters());
    const ls::train::CheckpointParts parts{.model = net_, .ema = averages};
    if (flags_.run_once) return evaluate(ls::train::resume_checkpoint(flags_.train_dir, parts), averages);
    lines_.message(fmt::format("waiting for checkpoints in {}", flags_.train_dir));
    for (std::int64_t last = -1; flags_.until_step == 0 || last < flags_.until_step;) {
      const auto found = load_newest(flags_.train_dir, parts);
      if (found && found->step != last) {
        evaluate(*found, averages);
        last = found->step;
      } else {
        wait_seconds(flags_.interval_secs);
      }
    }
  }

 private:
  void evaluate(const ls::train::CheckpointState& state, ls::optim::ExponentialMovingAverage& averages) {
    const auto averaged = averages.swapped();
    const ex::Score score = ex::score_of(net_, test_, group_.local_device());
    lines_.message(fmt::format("{}: precision @ 1 = {:.3f} (step {}, {} images)", time_now(), score.accuracy,
                               state.step, score.samples));
    writer_.add_scalar("Precision @ 1", score.accuracy, state.step);
    writer_.flush();
  }

  const EvalFlags& flags_;
  ls::ProcessGroup& group_;
  ls::train::Progress lines_;
  const Data data_;
  const ls::data::Subset test_;
  ls::train::SummaryWriter writer_;
  ClassicNet net_;
};

int run_eval(int argc, char** argv) {
  EvalFlags flags;
  if (!read_eval_flags(argc, argv, flags)) return 0;
  const auto group = ls::init_process_group();
  Evaluation(flags, *group).run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("cifar10_eval", run_eval, argc, argv); }
