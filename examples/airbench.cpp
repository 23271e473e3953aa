// The time to an accuracy on CIFAR-10, with the ideas of airbench (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single
// GPU", 2024): a first convolution that is not trained but whitens patches of the training images, batch norms that
// learn only biases, at a high rate, filters that begin as the identity, and a rate that rises and falls in straight
// lines. From the repository's root:
//
//   scripts/fetch-data cifar10
//   build/launcher/lockrun -n 2 build/examples/airbench --data data
//
// It prints its progress, after each epoch the first of these lines, and the second one when it reaches --target, by
// default 0.9, which ends the run:
//
//   accuracy A on N test samples, loss L, after S s of training
//   target T reached in epoch E, after S s of training
//
// The time is that of the steps; it includes reading and augmenting images, but neither the start nor the evaluations.
// --width 64 has airbench94's channels; a quarter of the work, --width 32, is the default, for CPUs.
// bench/peers/airbench.py does the same with PyTorch; docs/results/accuracy.md has figures of both.
#include <lockstep/lockstep.h>

#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

constexpr std::int64_t kPatch = 2, kPatchValues = kPatch * kPatch * 3;
using Matrix = std::array<std::array<double, kPatchValues>, kPatchValues>;

// Turns the plane of axes p and q so that symmetric[p][q] becomes 0 (Jacobi). The columns of `turned` turn along.
void rotate(Matrix& symmetric, Matrix& turned, std::size_t p, std::size_t q) {
  if (symmetric[p][q] == 0) return;
  const double ratio = (symmetric[q][q] - symmetric[p][p]) / (2 * symmetric[p][q]);
  const double tangent = std::copysign(1, ratio) / (std::abs(ratio) + std::sqrt(ratio * ratio + 1));
  const double cosine = 1 / std::sqrt(tangent * tangent + 1), sine = tangent * cosine;
  const auto turn = [&](double& a, double& b) {
    const double old = a;
    a = cosine * old - sine * b, b = sine * old + cosine * b;
  };
  for (std::size_t i = 0; i < kPatchValues; ++i) turn(symmetric[i][p], symmetric[i][q]);
  for (std::size_t i = 0; i < kPatchValues; ++i) turn(symmetric[p][i], symmetric[q][i]);
  for (std::size_t i = 0; i < kPatchValues; ++i) turn(turned[i][p], turned[i][q]);
}

// The mean of x x^T over the 2 x 2 patches x (row, column, channel) of the first 1,000 images.
Matrix patch_moments(const ls::data::Dataset& images) {
  Matrix sum{};
  std::int64_t patches = 0;
  for (std::int64_t index = 0; index < std::min<std::int64_t>(images.size(), 1000); ++index) {
    const ls::Tensor image = images.get(index, 0)[0];
    const std::int64_t side = image.shape()[0];
    const float* const values = image.data<float>();
    for (std::int64_t row = 0; row + kPatch <= side; ++row)
      for (std::int64_t column = 0; column + kPatch <= side; ++column, ++patches) {
        std::array<float, kPatchValues> patch;
        for (std::int64_t i = 0; i < kPatch; ++i)
          std::copy_n(values + ((row + i) * side + column) * 3, kPatch * 3, patch.begin() + i * kPatch * 3);
        for (std::size_t a = 0; a < kPatchValues; ++a)
          for (std::size_t b = 0; b < kPatchValues; ++b) sum[a][b] += static_cast<double>(patch[a]) * patch[b];
      }
  }
  for (auto& row : sum)
    for (double& value : row) value /= static_cast<double>(patches);
  return sum;
}

// Filters (24, 2, 2, 3): the principal axes of the patches, each divided by the deviation along it, and their
// negatives, because the activation after them keeps one sign.
ls::Tensor whitening_filters(const ls::data::Dataset& images) {
  Matrix moments = patch_moments(images), axes{};
  for (std::size_t i = 0; i < kPatchValues; ++i) axes[i][i] = 1;
  for (int sweep = 0; sweep < 20; ++sweep)  // converges in fewer than 10
    for (std::size_t p = 0; p < kPatchValues; ++p)
      for (std::size_t q = p + 1; q < kPatchValues; ++q) rotate(moments, axes, p, q);
  const ls::Tensor filters =
      ls::Tensor::empty({2 * kPatchValues, kPatch, kPatch, 3}, ls::DType::kFloat32, ls::cpu_device());
  float* const values = filters.data<float>();
  for (std::size_t axis = 0; axis < kPatchValues; ++axis)
    for (std::size_t i = 0; i < kPatchValues; ++i) {
      const double value = axes[i][axis] / std::sqrt(moments[axis][axis] + 5e-4);
      values[axis * kPatchValues + i] = static_cast<float>(value);
      values[(axis + kPatchValues) * kPatchValues + i] = static_cast<float>(-value);
    }
  return filters;
}

// 3 x 3, without a bias. The first filters begin as the identity, so that a new net passes its input on.
struct Convolution : nn::Conv2d {
  Convolution(std::int64_t inside, std::int64_t outside)
      : Conv2d(inside, outside, {3, 3}, {.padding = ls::Padding::all(1), .bias = false}) {
    const std::int64_t values = 9 * inside;
    for (std::int64_t i = 0; i < std::min(inside, outside); ++i) {
      const auto filter = weight.span<float>().subspan(static_cast<std::size_t>(i * values)).first(values);
      std::fill(filter.begin(), filter.end(), 0.0F);
      filter[static_cast<std::size_t>(4 * inside + i)] = 1;  // the fifth of 9 pixels is the centre
    }
  }
};

struct Norm : nn::BatchNorm {
  explicit Norm(std::int64_t channels) : BatchNorm(channels, {.momentum = 0.4F}) { ls::require_grad(weight, false); }
};

struct Block : nn::Sequential {
  Block(std::int64_t inside, std::int64_t outside) {
    append_named<Convolution>("conv1", inside, outside);
    append_named<nn::MaxPool2d>("pool", ls::Size2{2, 2});
    append_named<Norm>("norm1", outside);
    append_named<nn::GELU>("gelu1");
    append_named<Convolution>("conv2", outside, outside);
    append_named<Norm>("norm2", outside);
    append_named<nn::GELU>("gelu2");
  }
};

// Images (N, 32, 32, 3) to logits (N, 10).
struct Net : nn::Sequential {
  Net(std::int64_t width, const ls::Tensor& whitening) {
    auto& whiten = append_named<nn::Conv2d>("whiten", 3, whitening.shape()[0], ls::Size2{kPatch, kPatch},
                                            nn::Conv2dLayerOptions{.bias = false});
    whiten.weight.copy_from(whitening);
    whiten.freeze();
    append_named<nn::GELU>("gelu");
    append_named<Block>("block1", whitening.shape()[0], width);
    append_named<Block>("block2", width, 4 * width);
    append_named<Block>("block3", 4 * width, 4 * width);
    append_named<nn::MaxPool2d>("pool", ls::Size2{3, 3});
    append_named<nn::Flatten>("flatten");
    append_named<nn::Linear>("head", 4 * width, 10, nn::LinearLayerOptions{.bias = false});
  }
  ls::Tensors forward_all(const ls::Tensors& images) override {
    return {Sequential::forward_all(images)[0] / 9};  // small logits, so that labels are not fitted too early
  }
};

struct Flags : ex::TrainingFlags {
  std::int64_t train_images = 0, test_images = 0, width = 32;
  double target = 0.9;
};

// The first `count` images (0: all), normalised by the channels' statistics of the training set. For training they are
// shifted by up to 2 pixels and mirrored at random.
ls::data::Subset first_images(const std::string& folder, bool training, bool augment, std::int64_t count,
                              std::uint64_t seed) {
  const ls::data::Cifar10 all(
      folder, {.train = training,
               .augment = augment,
               .seed = seed,
               .augmentation = {.padding = 2,
                                .random_crop = true,
                                .flip = true,
                                .normalization = ls::data::normalize_channels({0.4914F, 0.4822F, 0.4465F},
                                                                              {0.2470F, 0.2435F, 0.2616F})}});
  return take(all, count > 0 ? std::min(count, all.size()) : all.size());
}

// SGD with Nesterov's momentum. The biases learn at 64 times the rate, without decay.
std::unique_ptr<ls::optim::SGD> make_sgd(const ls::DistributedDataParallel& ddp, ls::optim::LossScaler* scaler) {
  std::vector<ls::NamedTensor> filters, biases;
  for (const ls::NamedTensor& parameter : ddp.parameters())
    (parameter.name.ends_with("bias") ? biases : filters).push_back(parameter);
  auto sgd = std::make_unique<ls::optim::SGD>(
      filters,
      ls::optim::SGDOptions{.momentum = 0.85F, .nesterov = true, .weight_decay = 1.3e-3F, .loss_scaler = scaler});
  sgd->add_group({.parameters = biases, .lr_factor = 64, .weight_decay = 0});
  return sgd;
}

// The share of the peak rate: from 0.2 to 1 in the first quarter of the steps, then to 0.
float triangle(std::int64_t step, std::int64_t steps) {
  const float at = static_cast<float>(step) / static_cast<float>(steps), top = 0.25F;
  return at < top ? 0.2F + 0.8F * at / top : (1 - at) / (1 - top);
}

using Clock = std::chrono::steady_clock;

int train(const Flags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  check_json_file(flags, *group);
  const std::string folder = ex::find_cifar10(flags);
  const ls::data::Subset images = first_images(folder, true, true, flags.train_images, flags.seed);
  const ls::data::Subset test = first_images(folder, false, false, flags.test_images, flags.seed);
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), images.size());
  const ex::Steps steps = steps_of(flags, images.size());

  const ls::AutoCast autocast(type);  // for training and evaluation
  ls::optim::LossScaler loss_scaler, *const scaler = type == ls::DType::kFloat16 ? &loss_scaler : nullptr;
  ls::manual_seed(flags.seed);
  Net net(flags.width, whitening_filters(first_images(folder, true, false, flags.train_images, flags.seed)));
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);
  const std::unique_ptr<ls::optim::SGD> sgd = make_sgd(ddp, scaler);
  ls::data::DistributedSampler sampler(images.size(), group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::train::Progress progress(progress_of(flags, steps, *group));
  ex::LossCheck check(group, flags.log_every);
  progress.message(fmt::format("data: {} training, {} test images in {}", images.size(), test.size(), folder));

  ex::Score score;
  std::chrono::duration<double> spent{};
  bool is_reached = false;
  for (std::int64_t step = 0; step < steps.last && !is_reached;) {
    const std::int64_t epoch = step / steps.per_epoch;
    const Clock::time_point begin = Clock::now();
    sampler.set_epoch(epoch);
    for (auto& [inputs, labels] :
         ls::data::DataLoader(images, sampler, {.batch_size = batch, .device = &device, .drop_last = true})) {
      sgd->set_lr(flags.lr * triangle(step, steps.total));
      sgd->zero_grad();
      const ls::Tensor loss = nn::cross_entropy(ddp(inputs), labels, {.label_smoothing = 0.2F});
      (scaler != nullptr ? scaler->scale(loss) : loss).backward();  // buckets all-reduce while this runs
      sgd->step();
      progress.step(++step, loss, flags.batch);
      check.step(step, loss, step == steps.last);
      if (step == steps.last) break;
    }
    device.default_stream().synchronize();
    spent += Clock::now() - begin;
    score = ex::score_of(net, test, device);  // the same on all ranks, so that they end together
    is_reached = flags.target > 0 && score.accuracy >= flags.target;
    const auto after = fmt::format("after {:.1f} s of training", spent.count());
    progress.message(fmt::format("{}, {}", score.text(), after));
    if (is_reached)
      progress.message(fmt::format("target {:.4f} reached in epoch {}, {}", flags.target, epoch + 1, after));
  }
  if (flags.target > 0 && !is_reached) progress.message(fmt::format("target {:.4f} not reached", flags.target));
  write_json_file(flags, *group,
                  {{"accuracy", score.accuracy},
                   {"validation_loss", score.loss},
                   {"training_seconds", spent.count()},
                   {"target_reached", is_reached}});
  return 0;
}

int run(int argc, char** argv) {
  Flags flags{{.epochs = 16, .batch = 500, .lr = 0.75F}};
  const ex::Program program{"airbench", "Measures the time to an accuracy on CIFAR-10, on every rank of the job.",
                            "data_batch_*.bin and test_batch.bin"};
  const auto number = [](std::int64_t& flag) { return cxxopts::value(flag)->default_value(fmt::format("{}", flag)); };
  const bool wanted = read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) {
    add_dtype(add, flags);
    add("target", "end at this accuracy (0: train all epochs)", cxxopts::value(flags.target)->default_value("0.9"));
    add("width", "channels of the first block, a quarter of the others'", number(flags.width));
    add("train-images", "train on the first so many images (0: all)", number(flags.train_images));
    add("test-images", "evaluate on the first so many images (0: all)", number(flags.test_images));
  });
  if (!wanted) return 0;
  if (flags.width < 1 || flags.train_images < 0 || flags.test_images < 0 || !(flags.target >= 0 && flags.target <= 1))
    throw ls::InvalidArgument(
        "--width must be positive, --train-images and --test-images must not be negative, --target must be in 0 to 1");
  return train(flags);
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("airbench", run, argc, argv); }
