// cuDNN's measured engines against the CPU. scripts/test-gpu runs this alone, with LOCKSTEP_CUDNN_AUTOTUNE=1 and the
// debug messages about engines: a convolution has up to ten, and some take seconds to build.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"
#include "tests/gpu/gpu.h"

namespace lockstep::testing {
namespace {

using GpuTuning = GpuTest;

constexpr std::int64_t kBatch = 8, kSide = 24, kChannels = 64, kKernel = 5;

struct Results {
  std::vector<float> output, input_gradient, weight_gradient;
};

// A convolution of cifar10 with its two gradients: three shapes to tune.
class Convolution {
 public:
  explicit Convolution(Device& device) {
    manual_seed(11);
    for (const Tensor& each : {x_, weight_, gradient_}) fill_normal(each, 0, 1);
    for (Tensor* const each : {&x_, &weight_, &gradient_}) *each = each->to(device);
    for (const Tensor& each : {x_, weight_}) require_grad(each);
  }
  Results run() const {
    for (const Tensor& each : {x_, weight_}) clear_grad(each);
    const Tensor y = conv2d(x_, weight_, {}, {.padding = Same{}});
    y.backward({.gradient = gradient_});
    return {host_values<float>(detach(y)), host_values<float>(grad(x_)), host_values<float>(grad(weight_))};
  }

 private:
  Tensor x_ = Tensor::empty({kBatch, kSide, kSide, kChannels}),
         weight_ = Tensor::empty({kChannels, kKernel, kKernel, kChannels}),
         gradient_ = Tensor::empty({kBatch, kSide, kSide, kChannels});
};

// Relative to the largest value; sums of a few thousand products in another order, without TF32.
float largest_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  float largest = 0, error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::isfinite(actual[i]) ? std::abs(actual[i] - expected[i]) : INFINITY);
  }
  return error / largest;
}

// More often than once, since the engine that is measured to be the fastest takes over in a later call.
TEST_F(GpuTuning, TheFastestEnginesComputeWhatTheCpuDoes) {
  if (env::integer(env::kCudnnAutotune, 0, 1).value_or(0) != 1)
    GTEST_SKIP() << "LOCKSTEP_CUDNN_AUTOTUNE=1 is not set, so that nothing would be tuned: see scripts/test-gpu tuning";
  constexpr float kBound = 2e-4F;
  const Results expected = Convolution(cpu_device()).run();
  const Convolution tuned(gpu());
  for (int call = 0; call < 5; ++call) {
    const Results actual = tuned.run();
    ASSERT_EQ(actual.output.size(), expected.output.size());
    EXPECT_LT(largest_error(actual.output, expected.output), kBound) << "forward, call " << call;
    EXPECT_LT(largest_error(actual.input_gradient, expected.input_gradient), kBound) << "input, call " << call;
    EXPECT_LT(largest_error(actual.weight_gradient, expected.weight_gradient), kBound) << "weights, call " << call;
  }
}

}  // namespace
}  // namespace lockstep::testing
