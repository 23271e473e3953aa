// Training in 16 bits on several ranks: it learns as well as float32, all ranks keep the same bits, and an infinite
// gradient on one rank makes all of them skip that step.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep {
namespace {

using testing::expect_all_well;
using testing::run_ranks;

struct MixedNet : nn::Sequential {
  MixedNet() {
    append_named<nn::Conv2d>("conv", 1, 8, Size2{5, 5},
                             nn::Conv2dLayerOptions{.padding = Same{}, .activation = Activation::kReLU});
    append_named<nn::MaxPool2d>("pool", Size2{3, 3}, MaxPool2dOptions{.stride = {2, 2}, .padding = Same{}});
    append_named<nn::LocalResponseNorm>("norm", LrnOptions{.radius = 4, .bias = 1, .alpha = 0.001F / 9, .beta = 0.75F});
    append_named<nn::Flatten>("flatten");
    append_named<nn::Linear>("hidden", 5 * 5 * 8, 32, nn::LinearLayerOptions{.activation = Activation::kReLU});
    append_named<nn::Linear>("out", 32, 4);
  }
};

struct Examples {
  Tensor images, directions;
};

// Noisy stripes in four directions.
Examples stripes(std::int64_t count, std::uint64_t seed) {
  Examples examples{Tensor::empty({count, 10, 10, 1}), Tensor::empty({count}, DType::kInt64)};
  Philox random(seed, 0);
  float* pixel = examples.images.data<float>();
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t direction = n % 4;
    const float angle = 0.25F * 3.14159265F * static_cast<float>(direction), phase = random.uniform(0, 6.2831853F);
    examples.directions.data<std::int64_t>()[n] = direction;
    for (int i = 0; i < 100; ++i)
      *pixel++ = std::sin(1.2F * (std::cos(angle) * static_cast<float>(i / 10) +
                                  std::sin(angle) * static_cast<float>(i % 10)) +
                          phase) +
                 0.3F * random.normal();
  }
  return examples;
}

struct Outcome {
  double last_losses = 0;  // mean over the last ten steps
  std::vector<float> weights;
  std::int64_t skipped = 0;
  float scale = 0;
};

// Returns the outcome of each rank. At step `bad_step`, rank 1 has an infinite pixel.
std::vector<Outcome> train(int ranks, DType type, int steps, int bad_step = -1) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    const AutoCast autocast(type);
    manual_seed(3);
    MixedNet model;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {testing::in_mib(1024), testing::in_mib(16384)}});
    optim::LossScaler scaler;
    optim::SGD sgd(ddp.parameters(),
                   {.lr = 0.05F, .momentum = 0.9F, .loss_scaler = type == DType::kFloat16 ? &scaler : nullptr});
    Outcome& outcome = outcomes[static_cast<std::size_t>(group->rank())];
    for (int step = 0; step < steps; ++step) {
      const Examples batch = stripes(32, static_cast<std::uint64_t>(step * ranks + group->rank()));
      if (step == bad_step && group->rank() == 1)
        batch.images.template data<float>()[77] = std::numeric_limits<float>::infinity();
      const Tensor loss = nn::cross_entropy(ddp(batch.images), batch.directions);
      sgd.zero_grad();
      (type == DType::kFloat16 ? scaler.scale(loss) : loss).backward();
      sgd.step();
      if (step >= steps - 10) outcome.last_losses += loss.item() / 10;
    }
    for (const NamedTensor& parameter : ddp.parameters()) {
      EXPECT_EQ(parameter.tensor.dtype(), DType::kFloat32) << parameter.name;
      const auto values = parameter.tensor.template span<float>();
      outcome.weights.insert(outcome.weights.end(), values.begin(), values.end());
    }
    outcome.skipped = scaler.skipped_steps(), outcome.scale = scaler.value();
  }));
  return outcomes;
}

TEST(MixedPrecisionTraining, ReachesTheLossOfFloat) {
  constexpr int kSteps = 60;
  const Outcome plain = train(1, DType::kFloat32, kSteps)[0];
  EXPECT_LT(plain.last_losses, 0.7) << "the net learns nothing: ln 4 is 1.39";
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const Outcome half = train(1, type, kSteps)[0];
    EXPECT_NEAR(half.last_losses, plain.last_losses, 0.05) << name_of(type);
    EXPECT_NE(half.weights, plain.weights) << name_of(type) << " was not used";
    EXPECT_EQ(half.skipped, 0);
  }
}

TEST(MixedPrecisionTraining, RanksKeepTheSameBits) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const std::vector<Outcome> ranks = train(2, type, 12);
    EXPECT_EQ(ranks[0].weights, ranks[1].weights) << name_of(type);
    EXPECT_EQ(train(2, type, 12)[0].weights, ranks[0].weights) << name_of(type) << ", once more";
  }
}

TEST(MixedPrecisionTraining, AnInfiniteGradientOfOneRankSkipsOneStepOnAll) {
  constexpr int kSteps = 8, kBad = 5;
  const std::vector<Outcome> ranks = train(2, DType::kFloat16, kSteps, kBad);
  for (const Outcome& rank : ranks) {
    EXPECT_EQ(rank.skipped, 1);
    EXPECT_EQ(rank.scale, 32768);
    for (const float weight : rank.weights) ASSERT_TRUE(std::isfinite(weight));
  }
  EXPECT_EQ(ranks[0].weights, ranks[1].weights);
  EXPECT_NE(ranks[0].weights, train(2, DType::kFloat16, kSteps)[0].weights);
  EXPECT_EQ(train(2, DType::kFloat16, kBad + 1, kBad)[0].weights, train(2, DType::kFloat16, kBad)[0].weights)
      << "a skipped step changed weights";
}

}  // namespace
}  // namespace lockstep
