// A small convolutional network with batch normalisation and dropout on Fashion-MNIST, trained data-parallel. From the
// repository's root:
//
//   scripts/fetch-data fashion-mnist
//   build/launcher/lockrun -n 2 build/examples/fashion_mnist --data data
//
// It prints its progress, and after each epoch a line such as
//
//   accuracy 0.9227 on 10000 test samples, loss 0.211
//
// This is the last of ten: two ranks take 93 s of CPU time (AMD Zen 4). --help lists the flags; --json-file writes the
// figures.
#include <lockstep/lockstep.h>

#include <nlohmann/json.hpp>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

// Convolutions without a bias, since the normalisation after them has one; ReLU.
struct Net : nn::Sequential {
  Net() {
    const nn::Conv2dLayerOptions plain{.padding = ls::Padding::all(1), .bias = false};
    const nn::BatchNormLayerOptions relu{.activation = ls::Activation::kReLU};
    append_named<nn::Conv2d>("conv1", 1, 16, ls::Size2{3, 3}, plain);
    append_named<nn::BatchNorm2d>("norm1", 16, relu);
    append_named<nn::MaxPool2d>("pool1", ls::Size2{2, 2});
    append_named<nn::Conv2d>("conv2", 16, 32, ls::Size2{3, 3}, plain);
    append_named<nn::BatchNorm2d>("norm2", 32, relu);
    append_named<nn::MaxPool2d>("pool2", ls::Size2{2, 2});
    append_named<nn::Flatten>("flatten");
    append_named<nn::Dropout>("dropout1", 0.25F);
    append_named<nn::Linear>("hidden", 7 * 7 * 32, 128, nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
    append_named<nn::Dropout>("dropout2", 0.25F);
    append_named<nn::Linear>("out", 128, 10);
  }
};

int train(const ex::TrainingFlags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  check_json_file(flags, *group);
  const std::string folder =
      find_data(flags, "fashion-mnist", {"train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"});
  const ls::data::Mnist images(folder), test(folder, {.train = false});
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), images.size());
  const ex::Steps steps = steps_of(flags, images.size());

  const ls::AutoCast autocast(type);  // for training and evaluation alike
  ls::optim::LossScaler loss_scaler, *const scaler = type == ls::DType::kFloat16 ? &loss_scaler : nullptr;
  ls::manual_seed(flags.seed);
  Net net;
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::SGD sgd(ddp.parameters(),
                     {.momentum = 0.9F, .nesterov = true, .weight_decay = 5e-4F, .loss_scaler = scaler});
  const ls::optim::OneCycleRate rate{flags.lr, steps.total};
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
    score = ex::score_of(net, test, device);  // in evaluation mode: running statistics, no dropout
    progress.message(score.text());
  }
  ls::check_replicas_equal(*group, net.named_parameters(), "weights");
  write_json_file(flags, *group,
                  {{"accuracy", score.accuracy}, {"validation_loss", score.loss}, {"steps", steps.last}});
  return 0;
}

int run(int argc, char** argv) {
  ex::TrainingFlags flags{.epochs = 10, .batch = 128, .log_every = 100, .lr = 0.1F};
  const ex::Program program{"fashion_mnist", "Trains a small CNN on Fashion-MNIST on every rank of the job.",
                            "train-images-idx3-ubyte.gz and its three companions"};
  return read_flags(program, argc, argv, flags, [&](cxxopts::OptionAdder& add) { add_dtype(add, flags); })
             ? train(flags)
             : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("fashion_mnist", run, argc, argv); }
