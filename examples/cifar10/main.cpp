// CIFAR-10, trained data-parallel by a recipe: a network and its optimizer, one a file of this folder. Start it with any number of ranks
// that divides the batch. From the repository's root:
//
//   scripts/fetch-data cifar10
//   build/launcher/lockrun -n 2 build/examples/cifar10 --data data
//
// prints progress, then something like
//
//   accuracy 0.7016 on 10000 test samples, loss 0.893
//
// Without data it trains on a generated set of the same format, and says so. --help lists the flags; run.cpp has a step of the training.
#include "examples/cifar10/run.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

// `source` is a folder, or a generated set: that every rank makes for itself, in memory, and a rank that is killed leaves no file of it.
template <typename Source>
Data open_data(const Source& source, const Flags& flags, const std::string& what) {
  using ls::data::Cifar10;
  const ls::data::ImageAugmentation& augmentation = recipe_named(flags.recipe).augmentation;
  Data data{std::make_unique<Cifar10>(source,
                                      ls::data::Cifar10Options{.augment = flags.augment, .seed = flags.seed, .augmentation = augmentation}),
            std::make_unique<Cifar10>(source, ls::data::Cifar10Options{.train = false, .augment = false, .augmentation = augmentation}),
            ""};
  data.what = fmt::format("{} ({} training, {} test images)", what, data.train->size(), data.test->size());
  return data;
}

Data open_data(const Flags& flags) {
  const std::string folder = flags.generated ? "" : ls::data::find_cifar10(flags.data);
  if (!folder.empty()) return open_data(folder, flags, "CIFAR-10 in " + folder);
  Data data = open_data(ls::data::GeneratedCifar10{}, flags, "generated images of 10 textures");
  if (!flags.generated) data.what += "; scripts/fetch-data cifar10 downloads the real ones";
  data.is_generated = true;
  return data;
}

int train(const Flags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  check_json_file(flags, *group);
  if (!flags.checkpoint.empty() && !flags.resume) ls::prepare_checkpoint_folder(flags.checkpoint);
  const Recipe& recipe = recipe_named(flags.recipe);
  const Data data = open_data(flags);
  batch_of_rank(flags, group->world_size(), data.train->size());
  const ex::Steps steps = steps_of(flags, data.train->size());
  const float peak = flags.lr > 0 ? flags.lr : data.is_generated ? recipe.generated_rate : recipe.peak_rate;

  const ls::AutoCast autocast(type);  // for training and evaluation alike
  ls::optim::LossScaler loss_scaler, *const scaler = type == ls::DType::kFloat16 ? &loss_scaler : nullptr;
  ls::manual_seed(flags.seed);
  const std::unique_ptr<nn::Module> net = recipe.make_net();
  net->to(group->local_device());
  ls::DistributedDataParallel ddp(*net, group);
  ls::optim::SGD sgd(ddp.parameters(), {.lr = peak, .momentum = recipe.momentum, .loss_scaler = scaler});
  ls::data::DistributedSampler sampler(data.train->size(), group->place(), {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::Progress progress(progress_of(flags, steps, *group));
  Run run{flags, recipe, *group, data, *net, ddp, sgd, scaler, sampler, progress, steps, recipe.make_rate(peak, steps.total)};
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

int run_cifar10(int argc, char** argv) {
  Flags flags{{.epochs = 6, .batch = 128}};
  return read_cifar10_flags(argc, argv, flags) ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("cifar10", run_cifar10, argc, argv); }
