#include "examples/cifar10/flags.h"

#include "examples/cifar10/recipe.h"

namespace ls = lockstep;

namespace {

void add_flags(cxxopts::OptionAdder& add, Flags& flags) {
  add("generated", "train on the generated set even if there is data", cxxopts::value(flags.generated));
  add("recipe", recipe_list(), cxxopts::value(flags.recipe)->default_value("quick"));
  add_dtype(add, flags);
  add("augment", "random crop, flip, brightness, contrast", cxxopts::value(flags.augment)->default_value("true"));
  add("checkpoint", "folder for checkpoints, one per epoch", cxxopts::value(flags.checkpoint)->default_value(""));
  add("save-every", "steps between checkpoints within an epoch (0: none)",
      cxxopts::value(flags.save_every)->default_value("0"));
  add("resume",
      "resume from the newest checkpoint there, or from --resume=DIR: another run's folder, or one checkpoint's",
      cxxopts::value(flags.resume_from)->implicit_value(""), "[=DIR]");
  add("auto-resume", "the same, or start if there is none yet: for jobs that are restarted with the same command",
      cxxopts::value(flags.auto_resume));
  add("summary", "print the network first", cxxopts::value(flags.summary));
}

}  // namespace

bool read_cifar10_flags(int argc, char** argv, Flags& flags) {
  const ls::examples::Program program{"cifar10", "Trains a network on CIFAR-10 on every rank of the job.",
                                      "data_batch_*.bin and test_batch.bin"};
  if (!read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) { add_flags(add, flags); })) return false;
  flags.resume = flags.given.count("resume") != 0;
  recipe_named(flags.recipe);
  if (flags.save_every < 0) throw ls::InvalidArgument("--save-every {}: must not be negative", flags.save_every);
  if (flags.resume && flags.auto_resume) throw ls::InvalidArgument("--resume and --auto-resume exclude each other");
  if (((flags.resume && flags.resume_from.empty()) || flags.auto_resume || flags.save_every > 0) &&
      flags.checkpoint.empty())
    throw ls::InvalidArgument("--resume, --auto-resume and --save-every need --checkpoint DIR");
  if (flags.resume_from.empty()) flags.resume_from = flags.checkpoint;
  return true;
}

const Recipe& recipe_named(const std::string& name) {
  for (const Recipe* recipe : {&kQuick, &kModern})
    if (name == recipe->name) return *recipe;
  throw ls::InvalidArgument("--recipe {}: expected one of {}", name, recipe_list());
}

std::string recipe_list() {
  return fmt::format("'{}' ({}), '{}' ({}), 'classic' (TensorFlow's tutorial; its flags: --recipe classic --help)",
                     kQuick.name, kQuick.purpose, kModern.name, kModern.purpose);
}
