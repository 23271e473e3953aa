// One rank of a short training whose kernels use several threads: convolutions by oneDNN and by Winograd, long and wide
// products.
//
//   weights_rank report=FILE
//
// Rank 0 appends the number of ranks and the hash of the weights to the file, since launchers sometimes lose the last
// output of ranks. Each rank prints its number of compute threads.
#include <fmt/format.h>

#include <fstream>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "src/core/process/compute_threads.h"
#include "tests/faults/rank_arguments.h"

namespace {

using lockstep::Tensor;
namespace nn = lockstep::nn;

constexpr std::int64_t kBatch = 32, kSide = 16, kChannels = 64, kClasses = 10, kHidden = 512;
constexpr int kSteps = 3;

struct Net : nn::Sequential {
  Net() {
    constexpr auto kReLU = lockstep::Activation::kReLU;
    append<nn::Conv2d>(3, kChannels, lockstep::Size2{5, 5},
                       nn::Conv2dLayerOptions{.stride = {2, 2}, .activation = kReLU});
    append<nn::Conv2d>(kChannels, kChannels, lockstep::Size2{5, 5},
                       nn::Conv2dLayerOptions{.padding = lockstep::Padding::all(2)});
    append<nn::Flatten>();
    append<nn::Linear>(6 * 6 * kChannels, kHidden, nn::LinearLayerOptions{.activation = kReLU});
    append<nn::Linear>(kHidden, kClasses);
  }
};

int run(int argc, char** argv) {
  const lockstep::testing::RankArguments arguments(argc, argv);
  const auto group = lockstep::init_process_group();
  lockstep::manual_seed(3);
  Net net;
  lockstep::DistributedDataParallel ddp(net, group);
  lockstep::optim::SGD sgd(ddp.parameters(), {.lr = 0.05F, .momentum = 0.9F});
  for (int step = 0; step < kSteps; ++step) {
    lockstep::Philox random(/*seed=*/5, static_cast<std::uint64_t>(step * group->world_size() + group->rank()));
    std::vector<float> images(kBatch * kSide * kSide * 3);
    std::vector<std::int64_t> classes(kBatch);
    for (float& value : images) value = random.uniform(-1.F, 1.F);
    for (std::size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<std::int64_t>(i) % kClasses;
    sgd.zero_grad();
    lockstep::nn::cross_entropy(ddp(Tensor::from(std::span<const float>(images), {kBatch, kSide, kSide, 3})),
                                Tensor::from(std::span<const std::int64_t>(classes), {kBatch}))
        .backward();
    sgd.step();
  }
  if (group->rank() == 0)
    std::ofstream(arguments.text("report"), std::ios::app)
        << fmt::format("{} ranks: weights {}\n", group->world_size(), lockstep::hash_of(net.named_parameters()))
        << std::flush;
  group->barrier();
  fmt::print("{} threads\n", lockstep::compute_threads());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("weights_rank", run, argc, argv); }
