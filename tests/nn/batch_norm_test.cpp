#include "lockstep/nn/batch_norm.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;

TEST(BatchNormLayer, HasParametersThatAreTrainedAndBuffersThatAreNot) {
  const BatchNorm2d norm(3);
  std::vector<std::string> parameters, buffers;
  for (const NamedTensor& each : norm.named_parameters()) parameters.push_back(each.name);
  for (const NamedTensor& each : norm.named_buffers()) buffers.push_back(each.name);
  EXPECT_THAT(parameters, ElementsAre("weight", "bias"));
  EXPECT_THAT(buffers, ElementsAre("running_mean", "running_var"));
  EXPECT_TRUE(BatchNorm2d(3, {.affine = false}).named_parameters().empty());
  EXPECT_THROW(BatchNorm2d(0), InvalidArgument);
}

TEST(BatchNormLayer, RunningStatisticsComeToThoseOfTheData) {
  BatchNorm2d norm(2, {.momentum = 0.5F});
  manual_seed(1);
  const Tensor x = Tensor::empty({64, 4, 4, 2});
  fill_normal(x, 3, 2);
  for (int pass = 0; pass < 20; ++pass) norm(x);
  for (int channel = 0; channel < 2; ++channel) {
    EXPECT_NEAR(norm.running_mean.span<float>()[channel], 3, 0.3);
    EXPECT_NEAR(norm.running_var.span<float>()[channel], 4, 0.6);
  }
  // Then evaluation computes the same as training, except for the variance's factor 1024 / 1023.
  const Tensor trained = norm(x);
  norm.train(false);
  const Tensor evaluated = norm(x);
  for (int i = 0; i < 100; ++i) EXPECT_NEAR(evaluated.span<float>()[i], trained.span<float>()[i], 0.01);
}

}  // namespace
}  // namespace lockstep::nn
