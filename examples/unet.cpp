// A small U-Net (Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015) that
// finds the class of every pixel, trained data-parallel. From the repository's root:
//
//   scripts/fetch-data fashion-mnist
//   build/launcher/lockrun -n 2 build/examples/unet --data data
//
// The data set is made from Fashion-MNIST, since the classes of its pixels follow from the images: a scene is a noisy
// background with three garments at random places, which may cover each other. A pixel has the class of the garment
// whose image is not dark there, or is background. Training scenes have training images in new places in each epoch,
// test scenes have test images. Scores are comparable among runs of this program, not with those on photographs.
//
// It prints its progress, and after each epoch a line such as
//
//   mean IoU 0.4405, accuracy 0.8862 of the pixels of 2000 test scenes, loss 0.322
//
// This is after the three epochs of the default on two ranks; the mean is over background and ten classes. Background
// everywhere has a mean IoU near 0.07: first a net finds the garments, which lowers the loss, then it learns to tell them
// apart, which raises the mean.
#include <lockstep/lockstep.h>

#include <nlohmann/json.hpp>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

constexpr std::int64_t kSide = 64, kGarments = 3, kClasses = 11;  // of a scene; class 0 is background

// Samples are {(64, 64, 1) float32, (64, 64) int64}. A scene is a function of seed, epoch and index.
class Scenes : public ls::data::FixedShapeDataset {
 public:
  Scenes(ls::data::Mnist garments, std::int64_t size, std::uint64_t seed)
      : garments_(std::move(garments)), size_(size), seed_(seed) {}
  std::int64_t size() const override { return size_; }
  std::vector<ls::data::TensorSpec> element_spec() const override {
    return {{{kSide, kSide, 1}, ls::DType::kFloat32}, {{kSide, kSide}, ls::DType::kInt64}};
  }
  void read(std::int64_t index, std::int64_t epoch, const ls::data::Row& row) const override {
    ls::Philox random(seed_,
                      ls::random_stream(ls::RandomUse::kProgram, static_cast<std::uint64_t>(epoch * size_ + index)));
    const std::span<float> pixels = row.span<float>(0);
    const std::span<std::int64_t> classes = row.span<std::int64_t>(1);
    std::fill(pixels.begin(), pixels.end(), random.uniform(0, 0.5F));
    std::fill(classes.begin(), classes.end(), 0);
    for (std::int64_t i = 0; i < kGarments; ++i) place_garment(random, pixels, classes);
    for (float& pixel : pixels) pixel += 0.1F * random.normal();
  }

 private:
  void place_garment(ls::Philox& random, std::span<float> pixels, std::span<std::int64_t> classes) const {
    const ls::data::Sample garment = garments_.get(random.below(static_cast<std::uint32_t>(garments_.size())), 0);
    const std::int64_t side = garment[0].shape()[0];
    const std::int64_t top = random.below(static_cast<std::uint32_t>(kSide - side + 1)),
                       left = random.below(static_cast<std::uint32_t>(kSide - side + 1));
    const float brightness = random.uniform(0.5F, 1);
    for (std::int64_t i = 0; i < garment[0].count(); ++i) {
      const float value = garment[0].data<float>()[i];
      if (value < 0.1F) continue;
      const auto at = static_cast<std::size_t>((top + i / side) * kSide + left + i % side);
      pixels[at] = brightness * value;
      classes[at] = 1 + garment[1].item<std::int64_t>();
    }
  }

  ls::data::Mnist garments_;
  std::int64_t size_;
  std::uint64_t seed_;
};

// Two convolutions, each with batch normalisation and ReLU.
struct Block : nn::Sequential {
  Block(std::int64_t inside, std::int64_t outside) {
    for (const std::int64_t channels : {inside, outside}) {
      append<nn::Conv2d>(channels, outside, ls::Size2{3, 3},
                         nn::Conv2dLayerOptions{.padding = ls::Padding::all(1), .bias = false});
      append<nn::BatchNorm2d>(outside, nn::BatchNormLayerOptions{.activation = ls::Activation::kReLU});
    }
  }
};

// Images (N, H, W, 1) to logits (N, H, W, classes). H and W are divisible by 8. On the way down each level has half the
// pixels and twice the channels; on the way up it also reads what the level of its size had on the way down.
struct UNet : nn::Module {
  nn::ModuleList<Block> down, up;
  nn::ModuleList<nn::ConvTranspose2d> grow;
  Block bottom;
  nn::Conv2d head;

  UNet(std::int64_t width, std::int64_t levels, std::int64_t classes)
      : bottom(width << (levels - 1), width << levels), head(width, classes, {1, 1}) {
    for (std::int64_t level = 0; level < levels; ++level) {
      const std::int64_t channels = width << level;
      down.append(level == 0 ? 1 : channels / 2, channels);
      up.append(2 * channels, channels);
      grow.append(2 * channels, channels, ls::Size2{2, 2}, nn::ConvTranspose2dLayerOptions{.stride = {2, 2}});
    }
    add("down", down), add("bottom", bottom), add("grow", grow), add("up", up), add("head", head);
  }
  ls::Tensor forward(const ls::Tensor& image) override {
    std::vector<ls::Tensor> skipped;
    ls::Tensor x = image;
    for (Block& block : down) {
      skipped.push_back(block(x));
      x = ls::max_pool2d(skipped.back(), {2, 2});
    }
    x = bottom(x);
    for (std::size_t level = down.size(); level-- > 0;) x = up[level](ls::concat({skipped[level], grow[level](x)}, -1));
    return head(x);
  }
};

struct Score {
  double mean_iou = 0, accuracy = 0, loss = 0;
};

// IoU of a class: the pixels that have it and are predicted as it, divided by those of which either is true. A class
// without any such pixel does not count.
double mean_iou_of(const ls::train::ConfusionMatrix& counts) {
  double sum = 0;
  int present = 0;
  for (std::int64_t label = 0; label < kClasses; ++label) {
    std::int64_t either = counts.unpredicted(label) - counts.at(label, label);
    for (std::int64_t other = 0; other < kClasses; ++other) either += counts.at(label, other) + counts.at(other, label);
    if (either == 0) continue;
    sum += static_cast<double>(counts.at(label, label)) / static_cast<double>(either);
    ++present;
  }
  return sum / present;
}

Score score_of(nn::Module& net, const Scenes& test, ls::Device& device) {
  ls::train::ConfusionMatrix counts(kClasses);
  ls::train::Accuracy accuracy;
  ls::train::MeanCrossEntropy loss;
  ls::train::evaluate(net, test, {&counts, &accuracy, &loss}, {.batch_size = 50, .device = &device});
  return {mean_iou_of(counts), accuracy.value(), loss.value()};
}

struct Flags : ex::TrainingFlags {
  std::int64_t train_scenes = 8000, test_scenes = 2000, width = 16;
};

int train(const Flags& flags) {
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  check_json_file(flags, *group);
  const std::string folder =
      find_data(flags, "fashion-mnist", {"train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"});
  const Scenes scenes(ls::data::Mnist(folder), flags.train_scenes, flags.seed);
  const Scenes test(ls::data::Mnist(folder, {.train = false}), flags.test_scenes, flags.seed + 1);
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), scenes.size());
  const ex::Steps steps = steps_of(flags, scenes.size());

  ls::manual_seed(flags.seed);
  UNet net(flags.width, 3, kClasses);
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::AdamW adam(ddp.parameters());
  const ls::optim::OneCycleRate rate{flags.lr, steps.total};
  ls::data::DistributedSampler sampler(scenes.size(), group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::train::Progress progress(progress_of(flags, steps, *group, "scenes"));
  ex::LossCheck check(group, flags.log_every);
  progress.message(fmt::format("data: {} training, {} test scenes of {}", scenes.size(), test.size(), folder));

  Score score;
  for (std::int64_t step = 0; step < steps.last;) {
    sampler.set_epoch(step / steps.per_epoch);
    for (auto& [images, classes] :
         ls::data::DataLoader(scenes, sampler, {.batch_size = batch, .device = &device, .drop_last = true})) {
      adam.set_lr(rate.at(step));
      adam.zero_grad();
      const ls::Tensor loss = nn::cross_entropy(ddp(images), classes);  // the mean over all pixels
      loss.backward();
      adam.step();
      progress.step(++step, loss, flags.batch);
      check.step(step, loss, step == steps.last);
      if (step == steps.last) break;
    }
    score = score_of(net, test, device);
    progress.message(fmt::format("mean IoU {:.4f}, accuracy {:.4f} of the pixels of {} test scenes, loss {:.3f}",
                                 score.mean_iou, score.accuracy, test.size(), score.loss));
  }
  ls::check_replicas_equal(*group, net.named_parameters(), "weights");
  write_json_file(flags, *group,
                  {{"mean_iou", score.mean_iou},
                   {"accuracy", score.accuracy},
                   {"validation_loss", score.loss},
                   {"steps", steps.last}});
  return 0;
}

int run(int argc, char** argv) {
  Flags flags{{.epochs = 3, .batch = 16, .lr = 5e-3F}};
  const ex::Program program{"unet", "Trains a U-Net to segment scenes of Fashion-MNIST's garments on every rank.",
                            "train-images-idx3-ubyte.gz and its three companions"};
  const auto number = [](std::int64_t& flag) { return cxxopts::value(flag)->default_value(fmt::format("{}", flag)); };
  const bool wanted = read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) {
    add("train-scenes", "scenes of an epoch", number(flags.train_scenes));
    add("test-scenes", "scenes to evaluate on", number(flags.test_scenes));
    add("width", "channels of the first level", number(flags.width));
  });
  if (wanted && (flags.train_scenes < 1 || flags.test_scenes < 1 || flags.width < 1))
    throw ls::InvalidArgument("--train-scenes, --test-scenes and --width must be positive");
  return wanted ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("unet", run, argc, argv); }
