// How kernels/cuda uses cuBLASLt and cuDNN: what the environment allows them, which engines are built and measured, and
// what happens if there is none. On the stand-ins in emulated_cuda/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

#include "kernels/cases/shapes.h"
#include "kernels/cases/values.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/plan_cache.h"
#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/base/half.h"
#include "tests/kernels/emulated_cuda/table.h"
#include "tests/kernels/reference_comparison.h"
#include "tests/support/message_of.h"

namespace lockstep::cuda {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using Variables = std::initializer_list<std::pair<const char*, const char*>>;

// Sets these variables, and unsets the others that read_math_settings() reads.
void set_environment(Variables variables) {
  for (const char* const name : {env::kDeterministic, env::kTf32, env::kCudnnAutotune, env::kCudnnTuning,
                                 env::kCudnnNondeterministic, env::kCudaWorkspace})
    unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name, value, 1);
}

// The settings as text: TF32 in products, in convolutions, autotuning, no fixed order of sums.
std::string settings_with(Variables variables) {
  set_environment(variables);
  std::string text;
  const std::string error = message_of([&] {
    const MathSettings s = read_math_settings();
    for (const bool each : {s.tf32_products, s.tf32_convolutions, s.autotune, s.nondeterministic})
      text += each ? "1" : "0";
  });
  set_environment({{env::kDeterministic, "1"}});
  return text.empty() ? error : text;
}

TEST(MathSettings, AreChosenByOneVariableAndRefinedByOthers) {
  EXPECT_EQ(settings_with({}), "0111");
  EXPECT_EQ(settings_with({{env::kDeterministic, "0"}}), "0111");
  EXPECT_EQ(settings_with({{env::kDeterministic, "1"}}), "0000");
  EXPECT_EQ(settings_with({{env::kTf32, "0"}}), "0011");
  EXPECT_EQ(settings_with({{env::kTf32, "1"}}), "1111");
  EXPECT_EQ(settings_with({{env::kDeterministic, "1"}, {env::kTf32, "1"}}), "1100") << "TF32 has the same bits";
  EXPECT_EQ(settings_with({{env::kDeterministic, "1"}, {env::kCudnnAutotune, "1"}}), "0010");
  EXPECT_EQ(settings_with({{env::kCudnnAutotune, "0"}}), "0101");
  EXPECT_EQ(settings_with({{env::kCudnnNondeterministic, "0"}}), "0110");
  EXPECT_THAT(settings_with({{env::kDeterministic, "1"}, {env::kCudnnNondeterministic, "1"}}),
              HasSubstr("LOCKSTEP_DETERMINISTIC=1 and LOCKSTEP_CUDNN_NONDETERMINISTIC=1 contradict each other"));
  EXPECT_THAT(settings_with({{env::kDeterministic, "yes"}}), HasSubstr("LOCKSTEP_DETERMINISTIC"));
}

TEST(PlanCache, DropsTheLeastRecentlyUsedPlan) {
  PlanCache<int, int> plans(3);
  for (const int key : {1, 2, 3}) EXPECT_EQ(plans.add(key, 10 * key), 10 * key);
  ASSERT_NE(plans.find(1), nullptr);
  plans.add(4, 40);
  EXPECT_EQ(plans.size(), 3U);
  EXPECT_EQ(plans.find(2), nullptr) << "1 was used later";
  for (const int key : {1, 3, 4}) EXPECT_EQ(*plans.find(key), 10 * key);
}

// How the emulated cuDNN was allowed to compute: 0: in float32, 1: in TF32, 2: in bfloat16, 3: with different bits in
// every call.
int kind_of_convolution() {
  const Conv2dShape shape = testing::conv2d_shape(1, 2, 2, 1, 2, 1, 1, 1, 1, {0, 0, 0, 0});
  alignas(16) const float x[4] = {1, 1, 1, 1 + 0x1p-9F + 0x1p-12F}, weight[4] = {1, 1};
  alignas(16) float first[8], second[8];
  for (float* const y : {first, second})
    testing::emulated_kernels().conv2d(shape, {x, testing::x_shape(shape)}, {weight, testing::weight_shape(shape)}, {},
                                       false, {y, testing::y_shape(shape)}, cpu_device().default_stream());
  if (first[7] != second[7]) return 3;
  return first[7] == x[3] ? 0 : first[7] == 1 + 0x1p-9F ? 1 : 2;
}

TEST(EmulatedCudnn, IsLetDoWhatTheEnvironmentSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in separate processes, because settings are read once
  const auto with = [](Variables variables) {
    set_environment(variables);
    std::_Exit(kind_of_convolution());
  };
  EXPECT_EXIT(with({{env::kDeterministic, "1"}}), ExitedWithCode(0), "");
  EXPECT_EXIT(with({{env::kDeterministic, "1"}, {env::kTf32, "1"}}), ExitedWithCode(1), "");
  EXPECT_EXIT(with({}), ExitedWithCode(3), "");
  EXPECT_EXIT(with({{env::kCudnnNondeterministic, "0"}}), ExitedWithCode(1), "");
  EXPECT_EXIT(with({{env::kCudnnNondeterministic, "0"}, {env::kTf32, "0"}}), ExitedWithCode(0), "");
}

// How the emulated cuBLASLt computed in the operators that multiply: 0: in float32, 1: in TF32, 2: in both.
int kind_of_products() {
  constexpr float kRounded = 1 + 0x1p-9F, kValue = kRounded + 0x1p-12F;
  alignas(16) const float row[4] = {kValue}, one[4] = {1},
                          square[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) float results[4][16];
  const KernelTable& kernels = testing::emulated_kernels();
  Stream& stream = cpu_device().default_stream();
  const auto bits = [](float value) { return narrow_bfloat16(value).bits; };
  alignas(16) const std::uint16_t half[16] = {bits(1)};
  alignas(16) std::uint16_t half_result[16];
  kernels.linear({row, {1, 4}}, {square, {4, 4}}, {}, false, {results[0], {1, 4}}, stream);
  kernels.linear_backward_data({row, {1, 4}}, {square, {4, 4}}, {results[1], {1, 4}}, stream);
  kernels.linear_backward_weights({row, {1, 4}}, {one, {1, 4}}, {results[2], {4, 4}}, {}, stream);
  kernels.matmul({row, {1, 1, 4}}, false, {square, {1, 4, 4}}, false, {results[3], {1, 1, 4}}, stream);
  kernels.matmul({half, DType::kBFloat16, {1, 1, 4}}, false, {half, DType::kBFloat16, {1, 4, 4}}, false,
                 {half_result, DType::kBFloat16, {1, 1, 4}}, stream);
  if (half_result[0] != bits(1)) return 2;
  const auto are_all = [&](float value) {
    return std::all_of(results, results + 4, [&](const float* y) { return y[0] == value; });
  };
  return are_all(kValue) ? 0 : are_all(kRounded) ? 1 : 2;
}

TEST(EmulatedCublas, MultipliesInTf32WhereTheEnvironmentSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto with = [](const char* value) {
    setenv("LOCKSTEP_TF32", value, 1);
    std::_Exit(kind_of_products());
  };
  EXPECT_EXIT(std::_Exit(kind_of_products()), ExitedWithCode(0), "");
  EXPECT_EXIT(with("0"), ExitedWithCode(0), "");
  EXPECT_EXIT(with("1"), ExitedWithCode(1), "");
}

// Makes that many calls with one shape in a process that logs; it exits with the number of engines that cuDNN compiled
// at run time.
void convolve(int calls, Variables variables) {
  set_environment(variables);
  setenv(env::kLogLevel, "debug", 1);
  for (int call = 0; call < calls; ++call) kind_of_convolution();
  std::_Exit(testing::emulated_calls().compiled_engines);
}

// kind_of_convolution() makes two calls. Of the engines that may compute float32, 5 and 6 are compiled at run time.
TEST(EmulatedCudnn, MeasuresEnginesForAShapeThatComesSeveralTimes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr const char* kTune = "1";
  const std::string first = "built emulated_engine_5 in [0-9]+ ms for the float32 convolution[^\n]*\n",
                    others =
                        "[^\n]*built emulated_engine_5 [^\n]*\n[^\n]*built emulated_engine_7 [^\n]*\n[^\n]*the "
                        "fastest engine for [^\n]*: emulated_engine_7, found in [0-9]+ ms\n$";
  EXPECT_EXIT(convolve(1, {{env::kDeterministic, "1"}, {env::kCudnnAutotune, kTune}}), ExitedWithCode(1), first + "$");
  EXPECT_EXIT(convolve(4, {{env::kDeterministic, "1"}, {env::kCudnnAutotune, kTune}}), ExitedWithCode(1),
              first + others);
  EXPECT_EXIT(convolve(4, {{env::kDeterministic, "1"}}), ExitedWithCode(1), first + "$");
  EXPECT_EXIT(convolve(4, {{env::kDeterministic, "1"}, {env::kCudnnAutotune, kTune}, {env::kCudnnTuning, "0"}}),
              ExitedWithCode(1), first + "$")
      << "no time";
}

// The emulated cuDNN cannot measure images of six channels: the first engine goes on.
TEST(EmulatedCudnn, GoesOnWithTheFirstEngineIfNoneCanBeMeasured) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto convolve_often = [] {
    set_environment({{env::kDeterministic, "1"}, {env::kCudnnAutotune, "1"}});
    setenv(env::kLogLevel, "debug", 1);
    const Conv2dShape shape = testing::conv2d_shape(1, 2, 2, 6, 2, 1, 1, 1, 1, {0, 0, 0, 0});
    const testing::Floats x = testing::uniform(testing::x_shape(shape).count(), 1),
                          weight = testing::uniform(testing::weight_shape(shape).count(), 2);
    std::vector<float> y(static_cast<std::size_t>(testing::y_shape(shape).count()));
    for (int call = 0; call < 4; ++call)
      testing::emulated_kernels().conv2d(shape, {x.data(), testing::x_shape(shape)},
                                         {weight.data(), testing::weight_shape(shape)}, {}, false,
                                         {y.data(), testing::y_shape(shape)}, cpu_device().default_stream());
    std::_Exit(y[0] != 0 ? 0 : 1);
  };
  EXPECT_EXIT(convolve_often(), ExitedWithCode(0),
              "is not tuned, and computed by cuDNN's first choice: [^\n]*no engine could be measured\n[^\n]*the "
              "fastest engine for [^\n]*: emulated_engine_5, ");
}

// The emulated backend refuses this width when it is told of the graph, which cudnn-frontend reports as a failed call.
TEST(EmulatedCudnn, AGraphThatTheBackendRefusesIsAProduct) {
  const Conv2dShape shape = testing::conv2d_shape(1, 3, 12, 2, 6, 2, 11, 1, 1, {0, 0, 0, 0});
  const testing::Floats x = testing::uniform(testing::x_shape(shape).count(), 1),
                        weight = testing::uniform(testing::weight_shape(shape).count(), 2);
  std::vector<float> y(static_cast<std::size_t>(testing::y_shape(shape).count()));
  const int convolutions = testing::emulated_calls().convolutions, products = testing::emulated_calls().products;
  testing::emulated_kernels().conv2d(shape, {x.data(), testing::x_shape(shape)},
                                     {weight.data(), testing::weight_shape(shape)}, {}, false,
                                     {y.data(), testing::y_shape(shape)}, cpu_device().default_stream());
  EXPECT_EQ(testing::emulated_calls().convolutions, convolutions);
  EXPECT_EQ(testing::emulated_calls().products, products + 1);
}

TEST(EmulatedCudnn, WhatItCannotDoWithTheSameBitsIsAProduct) {
  const Conv2dShape shape = testing::conv2d_shape(5, 9, 8, 3, 4, 2, 1, 3, 4, {0, 0, 0, 0});
  const auto values = [](std::int64_t count) { return testing::uniform(count, 1); };
  const testing::Floats x = values(testing::x_shape(shape).count()),
                        weight = values(testing::weight_shape(shape).count());
  std::vector<float> y(static_cast<std::size_t>(testing::y_shape(shape).count())), expected = y;
  const InputView in(x.data(), testing::x_shape(shape)), weights(weight.data(), testing::weight_shape(shape));
  Stream& stream = cpu_device().default_stream();
  const int convolutions = testing::emulated_calls().convolutions, products = testing::emulated_calls().products;
  testing::emulated_kernels().conv2d(shape, in, weights, {}, false, {y.data(), testing::y_shape(shape)}, stream);
  EXPECT_EQ(testing::emulated_calls().convolutions, convolutions);
  EXPECT_EQ(testing::emulated_calls().products, products + 1);
  reference_kernels().conv2d(shape, in, weights, {}, false, {expected.data(), testing::y_shape(shape)}, stream);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-5F) << i;
}

TEST(EmulatedCudnn, ADriverThatFailsIsNoMissingEngine) {
  const Conv2dShape shape = testing::conv2d_shape(1, 1, 13, 1, 1, 1, 13, 1, 1, {0, 0, 0, 0});
  const std::vector<float> x(13), weight(13);
  float y = 0;
  const int products = testing::emulated_calls().products;
  Stream& stream = cpu_device().default_stream();
  EXPECT_THAT(message_of([&] {
                testing::emulated_kernels().conv2d(shape, {x.data(), testing::x_shape(shape)},
                                                   {weight.data(), testing::weight_shape(shape)}, {}, false,
                                                   {&y, testing::y_shape(shape)}, stream);
              }),
              HasSubstr("the driver is broken"));
  EXPECT_EQ(testing::emulated_calls().products, products);
}

// A workspace of 1 MiB holds the windows of 3 of the 11 images at a time (87,000 floats per image): each direction
// takes 4 products, whose results are added.
TEST(EmulatedCudnn, AProductOfManyImagesGoesInParts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto check = [] {
    setenv("LOCKSTEP_CUDA_WORKSPACE_MIB", "1", 1);
    const Conv2dShape shape = testing::conv2d_shape(11, 33, 64, 8, 2, 5, 5, 1, 4, {0, 0, 0, 0});
    const testing::Floats x = testing::uniform(testing::x_shape(shape).count(), 1),
                          y = testing::uniform(testing::y_shape(shape).count(), 2),
                          weight = testing::uniform(testing::weight_shape(shape).count(), 3);
    float worst = 0;
    const InputView in(x.data(), testing::x_shape(shape)), grad(y.data(), testing::y_shape(shape)),
        weights(weight.data(), testing::weight_shape(shape));
    const auto compare = [&](const Shape& of, auto&& compute) {
      std::vector<float> actual(static_cast<std::size_t>(of.count())), expected = actual;
      compute(testing::emulated_kernels(), OutputView(actual.data(), of));
      compute(reference_kernels(), OutputView(expected.data(), of));
      for (std::size_t i = 0; i < actual.size(); ++i) worst = std::max(worst, std::abs(actual[i] - expected[i]));
    };
    Stream& stream = cpu_device().default_stream();
    const int products = testing::emulated_calls().products;
    compare(testing::y_shape(shape),
            [&](const KernelTable& kernels, Out out) { kernels.conv2d(shape, in, weights, {}, false, out, stream); });
    compare(testing::x_shape(shape), [&](const KernelTable& kernels, Out out) {
      kernels.conv2d_backward_data(shape, grad, weights, out, stream);
    });
    compare(testing::weight_shape(shape), [&](const KernelTable& kernels, Out out) {
      kernels.conv2d_backward_weights(shape, in, grad, out, {}, stream);
    });
    const bool in_parts = testing::emulated_calls().products - products == 3 * 4;
    std::_Exit(in_parts && worst < 2e-3F ? 0 : 1);
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep::cuda
