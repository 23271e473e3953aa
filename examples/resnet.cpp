// ResNet-20 on CIFAR-10 (He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2), trained
// data-parallel. From the repository's root:
//
//   scripts/fetch-data cifar10
//   build/launcher/lockrun -n 2 build/examples/resnet --data data
//
// It prints its progress, and after each epoch a line such as this, the fourth with --epochs 10 --train-images 2000
// --test-images 2000:
//
//   accuracy 0.2285 on 2000 test samples, loss 2.570
//
// bench/peers/resnet_cifar10.py does the same with PyTorch, whose fourth epoch ends at 0.2495 (one run of each, with
// different random numbers). After all 20 epochs of 20,000 images the accuracy is 0.7913 here, and 0.7952 there.
#include <lockstep/lockstep.h>

#include <nlohmann/json.hpp>

#include "examples/lib/resnet20.h"
#include "examples/lib/training.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

struct Flags : ex::TrainingFlags {
  std::int64_t train_images = 0, test_images = 0;
};

// The first `count` images (0: all). For training they are padded, cropped and mirrored at random.
ls::data::Subset first_images(const std::string& folder, bool training, std::int64_t count, std::uint64_t seed) {
  const ls::data::Cifar10 all(
      folder,
      {.train = training, .augment = training, .seed = seed, .augmentation = ls::data::ImageAugmentation::resnet()});
  return take(all, count > 0 ? std::min(count, all.size()) : all.size());
}

int train(const Flags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  check_json_file(flags, *group);
  const std::string folder = ex::find_cifar10(flags);
  const ls::data::Subset images = first_images(folder, true, flags.train_images, flags.seed);
  const ls::data::Subset test = first_images(folder, false, flags.test_images, flags.seed);
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), images.size());
  const ex::Steps steps = steps_of(flags, images.size());

  const ls::AutoCast autocast(type);  // for training and evaluation
  ls::optim::LossScaler loss_scaler, *const scaler = type == ls::DType::kFloat16 ? &loss_scaler : nullptr;
  ls::manual_seed(flags.seed);
  const std::unique_ptr<nn::Module> model = ex::make_resnet20();
  nn::Module& net = *model;
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::SGD sgd(ddp.parameters(), {.momentum = 0.9F, .weight_decay = 1e-4F, .loss_scaler = scaler});
  const ls::optim::StepRate rate{flags.lr, 0.1F, {steps.total / 2, steps.total * 3 / 4}};
  ls::data::DistributedSampler sampler(images.size(), group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::train::Progress progress(progress_of(flags, steps, *group));
  ex::LossCheck check(group, flags.log_every);
  progress.message(fmt::format("data: {} training, {} test images in {}", images.size(), test.size(), folder));

  ex::Score score;
  for (std::int64_t step = 0; step < steps.last;) {
    sampler.set_epoch(step / steps.per_epoch);
    for (auto& [inputs, labels] :
         ls::data::DataLoader(images, sampler, {.batch_size = batch, .device = &device, .drop_last = true})) {
      sgd.set_lr(rate.at(step));
      sgd.zero_grad();
      const ls::Tensor loss = nn::cross_entropy(ddp(inputs), labels);
      (scaler != nullptr ? scaler->scale(loss) : loss).backward();  // buckets all-reduce while this runs
      sgd.step();
      progress.step(++step, loss, flags.batch);
      check.step(step, loss, step == steps.last);
      if (step == steps.last) break;
    }
    score = ex::score_of(net, test, device);
    progress.message(score.text());
  }
  write_json_file(flags, *group,
                  {{"accuracy", score.accuracy}, {"validation_loss", score.loss}, {"steps", steps.last}});
  return 0;
}

int run(int argc, char** argv) {
  Flags flags{{.epochs = 20, .batch = 128, .lr = 0.1F}};
  const ex::Program program{"resnet", "Trains ResNet-20 on CIFAR-10 on every rank of the job.",
                            "data_batch_*.bin and test_batch.bin"};
  const bool wanted = read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) {
    add_dtype(add, flags);
    add("train-images", "train on the first so many images (0: all)",
        cxxopts::value(flags.train_images)->default_value("0"));
    add("test-images", "evaluate on the first so many images (0: all)",
        cxxopts::value(flags.test_images)->default_value("0"));
  });
  if (wanted && (flags.train_images < 0 || flags.test_images < 0))
    throw ls::InvalidArgument("--train-images and --test-images must not be negative");
  return wanted ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("resnet", run, argc, argv); }
