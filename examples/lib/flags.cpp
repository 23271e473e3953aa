#include <algorithm>
#include <cstdio>

#include "examples/lib/parse_flags.h"
#include "examples/lib/training.h"
#include "lockstep/core/error.h"

namespace lockstep::examples {

namespace {

cxxopts::Options options_of(const Program& program, TrainingFlags& flags, const AddFlags& add_flags) {
  cxxopts::Options options(program.name, program.purpose);
  auto add = options.add_options();
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  add("data", fmt::format("folder with {}; else LOCKSTEP_DATA", program.data),
      cxxopts::value(flags.data)->default_value(""));
  add("epochs", "passes over the training set", cxxopts::value(flags.epochs)->default_value(text(flags.epochs)));
  add("steps", "stop after so many steps (0: all); the learning rate is planned for all",
      cxxopts::value(flags.steps)->default_value(text(flags.steps)));
  add("batch", "global batch, divided by the ranks", cxxopts::value(flags.batch)->default_value(text(flags.batch)));
  add("lr", flags.lr > 0 ? "peak learning rate" : "peak learning rate (0: the recipe's)",
      cxxopts::value(flags.lr)->default_value(text(flags.lr)));
  add("seed", "seed of weights, order and augmentation", cxxopts::value(flags.seed)->default_value(text(flags.seed)));
  add("log-every", "steps between two lines of the log",
      cxxopts::value(flags.log_every)->default_value(text(flags.log_every)));
  add("json-file", "file for the figures", cxxopts::value(flags.json_file)->default_value(""));
  add("help", "print this text");
  if (add_flags) add_flags(add);
  return options;
}

void check_ranges(const TrainingFlags& flags) {
  if (flags.epochs < 1 || flags.batch < 1 || flags.log_every < 1 || flags.steps < 0 || !(flags.lr >= 0))
    throw InvalidArgument("--epochs, --batch and --log-every must be positive, --lr and --steps must not be negative");
  if (flags.epochs > 1'000'000) throw InvalidArgument("--epochs {}: at most 1000000", flags.epochs);
}

}  // namespace

std::optional<cxxopts::ParseResult> parse_flags(cxxopts::Options& options, int argc, char** argv) {
  cxxopts::ParseResult parsed = parse_naming_flags(options, argc, argv);
  if (parsed.count("help") != 0) {
    std::printf("%s", options.help().c_str());
    return std::nullopt;
  }
  if (!parsed.unmatched().empty())
    throw InvalidArgument("unknown argument '{}', see --help", parsed.unmatched().front());
  return parsed;
}

bool read_flags(const Program& program, int argc, char** argv, TrainingFlags& flags, const AddFlags& add_flags) {
  cxxopts::Options options = options_of(program, flags, add_flags);
  const auto parsed = parse_flags(options, argc, argv);
  if (!parsed) return false;
  for (const cxxopts::KeyValue& argument : parsed->arguments()) flags.given.insert(argument.key());
  check_ranges(flags);
  return true;
}

void add_dtype(cxxopts::OptionAdder& add, TrainingFlags& flags) {
  add("dtype", "type in which layers compute: float32, bfloat16 (bf16), float16 (fp16); weights stay float32",
      cxxopts::value(flags.dtype)->default_value(flags.dtype));
}

std::int64_t batch_of_rank(const TrainingFlags& flags, int ranks, std::int64_t set_size) {
  if (flags.batch % ranks != 0)
    throw InvalidArgument("--batch {} cannot be divided among {} ranks", flags.batch, ranks);
  if (flags.batch > set_size)
    throw InvalidArgument("--batch {} is larger than the set of {} samples", flags.batch, set_size);
  return flags.batch / ranks;
}

Steps steps_of(const TrainingFlags& flags, std::int64_t set_size) {
  const std::int64_t per_epoch = set_size / flags.batch, total = flags.epochs * per_epoch;
  return {per_epoch, total, flags.steps > 0 ? std::min(flags.steps, total) : total};
}

train::ProgressOptions progress_of(const TrainingFlags& flags, const Steps& steps, const ProcessGroup& group,
                                   const char* samples) {
  return {.enabled = group.rank() == 0,
          .terminal_width = train::terminal_width(),
          .total_steps = steps.total,
          .steps_per_epoch = steps.per_epoch,
          .log_every = flags.log_every,
          .samples = samples};
}

}  // namespace lockstep::examples
