// CIFAR-10, trained data-parallel by a recipe, which is a network and its optimizer; each recipe is a file of this
// folder. Start it with any number of ranks that divides the batch. From the repository's root:
//
//   scripts/fetch-data cifar10
//   build/launcher/lockrun -n 2 build/examples/cifar10 --data data
//
// It prints its progress, then a line such as
//
//   accuracy 0.7016 on 10000 test samples, loss 0.893
//
// --recipe modern trains a ResNet-20, --recipe classic is TensorFlow's multi-tower tutorial (classic.cpp);
// docs/cifar10.md compares the three. Without data it trains on a generated set of the same format, and says so. --help
// lists the flags; run.cpp has the training step.
#include "examples/cifar10/classic.h"
#include "examples/cifar10/run.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

int train(const Flags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  check_json_file(flags, *group);
  if (!flags.checkpoint.empty() && !flags.resume) ls::train::prepare_checkpoint_folder(flags.checkpoint);
  const Recipe& recipe = recipe_named(flags.recipe);
  const Data data = open_data({.folder = flags.data,
                               .generated = flags.generated,
                               .augment = flags.augment,
                               .seed = flags.seed,
                               .augmentation = recipe.augmentation});
  batch_of_rank(flags, group->world_size(), data.train->size());
  const ex::Steps steps = steps_of(flags, data.train->size());
  const float peak = flags.lr > 0 ? flags.lr : data.is_generated ? recipe.generated_rate : recipe.peak_rate;

  const ls::AutoCast autocast(type);  // for training and evaluation
  ls::optim::LossScaler loss_scaler, *const scaler = type == ls::DType::kFloat16 ? &loss_scaler : nullptr;
  ls::manual_seed(flags.seed);
  const std::unique_ptr<nn::Module> net = recipe.make_net();
  net->to(group->local_device());
  ls::DistributedDataParallel ddp(*net, group);
  ls::optim::SGD sgd(
      ddp.parameters(),
      {.lr = peak, .momentum = recipe.momentum, .weight_decay = recipe.weight_decay, .loss_scaler = scaler});
  ls::data::DistributedSampler sampler(*data.train, group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::train::Progress progress(progress_of(flags, steps, *group));
  Run run{flags, recipe, *group,  data,     *net,  ddp,
          sgd,   scaler, sampler, progress, steps, recipe.make_rate(peak, steps.total)};
  run.introduce();
  run.resume();
  const auto begin = std::chrono::steady_clock::now();
  while (run.step < steps.last) {
    run.train_epoch();
    if (run.step != (run.epoch + 1) * steps.per_epoch) break;  // --steps ends within an epoch
    run.finish_epoch();
  }
  report(run, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return 0;
}

// The recipe classic has its own command line. cxxopts accepts --recipe=NAME and --recipe NAME.
bool asks_for_classic(int argc, char** argv) {
  bool asks = false;  // the last --recipe counts
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--recipe=", 0) == 0) asks = word == "--recipe=classic";
    if (word == "--recipe" && i + 1 < argc) asks = std::string(argv[i + 1]) == "classic";
  }
  return asks;
}

int run_cifar10(int argc, char** argv) {
  if (asks_for_classic(argc, argv)) return run_classic(argc, argv);
  Flags flags{{.epochs = 6, .batch = 128}};
  return read_cifar10_flags(argc, argv, flags) ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("cifar10", run_cifar10, argc, argv); }
