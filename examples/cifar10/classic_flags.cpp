#include "examples/cifar10/classic_flags.h"

#include "examples/lib/dashed_flags.h"

#include "lockstep/core/error.h"
#include "lockstep/train/strategy.h"

namespace ls = lockstep;

namespace {

// The tutorial's strategy and those that train in the same way: all devices have the same weights after each step, and
// one process can save everything.
bool is_offered(const ls::train::StrategyKind& kind) {
  const ls::train::StrategyCapabilities& can = kind.capabilities;
  return !can.has_stages && !can.has_servers && !can.averages_weights && !can.shards_optimizer;
}

std::string strategy_list() {
  std::string list = "how to use several devices:";
  for (const ls::train::StrategyKind& kind : ls::train::strategies())
    if (is_offered(kind)) list += fmt::format("\n{}: {}", kind.name, kind.summary);
  return list;
}

cxxopts::Options options_of(ClassicFlags& flags) {
  cxxopts::Options options("cifar10 --recipe classic",
                           "Trains the network of TensorFlow's CIFAR-10 tutorial as the tutorial does.");
  auto add = options.add_options();
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  add("recipe", "classic", cxxopts::value<std::string>());
  add("data", "folder with data_batch_*.bin and test_batch.bin; else LOCKSTEP_DATA",
      cxxopts::value(flags.data)->default_value(""));
  add("generated", "train on the generated set even if there is data", cxxopts::value(flags.generated));
  add("train-dir", "folder for checkpoints and event files",
      cxxopts::value(flags.train_dir)->default_value(flags.train_dir));
  add("overwrite", "start over in a --train-dir that is not empty: removes checkpoints and event files there",
      cxxopts::value(flags.overwrite));
  add("resume", "resume from the newest checkpoint in --train-dir", cxxopts::value(flags.resume));
  add("max-steps", "steps of the entire training", cxxopts::value(flags.steps)->default_value(text(flags.steps)));
  add("batch-size", "images per step on each device", cxxopts::value(flags.batch)->default_value(text(flags.batch)));
  add("num-gpus",
      "number of devices: ranks of ddp, which this process starts unless a launcher has; GPUs of other strategies, or "
      "parts of the CPU if there is no GPU (0: all)",
      cxxopts::value(flags.num_gpus)->default_value("0"));
  add("strategy", strategy_list(), cxxopts::value(flags.strategy)->default_value(flags.strategy));
  add("lr", "initial learning rate, for any number of devices",
      cxxopts::value(flags.lr)->default_value(text(flags.lr)));
  add("log-device-placement", "log the device of each variable and operator",
      cxxopts::value(flags.log_device_placement));
  add("log-every", "steps between two lines of the log",
      cxxopts::value(flags.log_every)->default_value(text(flags.log_every)));
  add("summary-every", "steps between two summaries for TensorBoard (0: none)",
      cxxopts::value(flags.summary_every)->default_value(text(flags.summary_every)));
  add("save-every", "steps between two checkpoints; the last step is always saved",
      cxxopts::value(flags.save_every)->default_value(text(flags.save_every)));
  add("keep", "number of the newest checkpoints that are kept, as TensorFlow's Saver keeps 5",
      cxxopts::value(flags.keep)->default_value(text(flags.keep)));
  add("input-threads", "threads that crop, mirror and standardise the images of the next batches",
      cxxopts::value(flags.input_threads)->default_value(text(flags.input_threads)));
  add("seed", "seed of weights, order and augmentation", cxxopts::value(flags.seed)->default_value(text(flags.seed)));
  add("json-file", "file for the figures", cxxopts::value(flags.json_file)->default_value(""));
  add("help", "print this text");
  return options;
}

}  // namespace

bool read_classic_flags(int argc, char** argv, ClassicFlags& flags) {
  cxxopts::Options options = options_of(flags);
  ls::examples::DashedFlags dashed(argc, argv);
  if (!ls::examples::parse_flags(options, argc, dashed.argv())) return false;
  if (flags.steps < 1 || flags.batch < 1 || flags.log_every < 1 || flags.save_every < 1 || flags.keep < 1 ||
      flags.input_threads < 1 || flags.input_threads > 256)
    throw ls::InvalidArgument(
        "--max-steps, --batch-size, --log-every, --save-every, --keep and --input-threads must be positive (at most "
        "256 threads)");
  if (flags.num_gpus < 0 || flags.summary_every < 0 || !(flags.lr >= 0))
    throw ls::InvalidArgument("--num-gpus, --summary-every and --lr must not be negative");
  if (flags.overwrite && flags.resume) throw ls::InvalidArgument("--overwrite and --resume exclude each other");
  if (!is_offered(ls::train::strategy_named(flags.strategy)))
    throw ls::InvalidArgument(
        "--strategy {}: this recipe trains by ddp, mirrored, data_parallel or towers; examples/strategies.cpp shows "
        "the others",
        flags.strategy);
  if (flags.train_dir.empty()) throw ls::InvalidArgument("--train-dir: the folder's name is empty");
  return true;
}
