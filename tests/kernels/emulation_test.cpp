// Errors that the emulation of CUDA threads must detect; otherwise comparisons that pass on it would prove nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/kernels/emulated_cuda/cuda_runtime.h"  // replaces CUDA's own
// The kernels' header needs the header above.
#include "kernels/cases/shapes.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pad.h"
#include "lockstep/core/device.h"
#include "src/core/base/half.h"
#include "tests/kernels/emulated_cuda/table.h"
#include "tests/kernels/reference_comparison.h"
#include "tests/support/message_of.h"

namespace lockstep::cuda {
namespace {

using ::testing::HasSubstr;

class Emulation : public ::testing::TestWithParam<emulated_cuda::Order> {
 protected:
  void SetUp() override { emulated_cuda::set_order(GetParam()); }
  Stream& stream = cpu_device().default_stream();
};
INSTANTIATE_TEST_SUITE_P(Orders, Emulation,
                         ::testing::Values(emulated_cuda::Order::kForwards, emulated_cuda::Order::kBackwards));

__global__ void number_threads(std::vector<unsigned>* seen) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  (*seen)[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}

TEST_P(Emulation, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<unsigned> seen(2 * 3 * 4 * 5 * 3 * 2);
  LOCKSTEP_LAUNCH(number_threads, dim3(2, 3, 4), dim3(5, 3, 2), 0, stream, &seen);
  EXPECT_EQ(seen, std::vector<unsigned>(seen.size(), 1));
}

// Sums by halves; without the wait in the loop it would add values that are not written yet.
__global__ void sum_by_halves(const int* in, int* out) {
  int* const values = dynamic_shared<int>();
  values[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = values[0];
}
__global__ void sum_with_shuffles(const int* in, int* out) {
  const int sum = sum_of_block<256>(in[blockIdx.x * 256 + threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

TEST_P(Emulation, ThreadsWaitForEachOther) {
  std::vector<int> in(3 * 256), halves(3), shuffles(3), expected;
  std::iota(in.begin(), in.end(), -100);
  for (auto block = in.begin(); block != in.end(); block += 256)
    expected.push_back(std::accumulate(block, block + 256, 0));
  LOCKSTEP_LAUNCH(sum_by_halves, 3, 256, 256 * sizeof(int), stream, in.data(), halves.data());
  LOCKSTEP_LAUNCH(sum_with_shuffles, 3, 256, 0, stream, in.data(), shuffles.data());
  EXPECT_EQ(halves, expected);
  EXPECT_EQ(shuffles, expected);
}

__global__ void votes(int* out) {
  const int any_of_seven = __syncthreads_or(threadIdx.x == 7), any_of_none = __syncthreads_or(threadIdx.x > 1000);
  out[threadIdx.x] = any_of_seven + 2 * any_of_none;
}

TEST_P(Emulation, AnyThreadsVoteIsEverybodys) {
  std::vector<int> out(70);
  LOCKSTEP_LAUNCH(votes, 1, 70, 0, stream, out.data());
  EXPECT_EQ(out, std::vector<int>(70, 1));
}

__global__ void reads_its_neighbour(int* out) {
  int* const values = dynamic_shared<int>();
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[(threadIdx.x + 1) % blockDim.x];  // __syncthreads() is missing
}

__global__ void all_write_one(int* out) { *out = static_cast<int>(threadIdx.x); }

#ifdef EMULATED_UNDER_TSAN
// Also for threads that never wait: each is a separate fiber.
TEST_P(Emulation, RacesAreReports) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto race = [&](auto kernel) {
    std::vector<int> out(64);
    LOCKSTEP_LAUNCH(kernel, 1, 64, 64 * sizeof(int), stream, out.data());
    std::exit(0);  // the sanitizer makes it 66
  };
  EXPECT_EXIT(race(reads_its_neighbour), ::testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT(race(all_write_one), ::testing::ExitedWithCode(66), "data race");
}
#else
TEST_P(Emulation, AForgottenWaitShows) {
  std::vector<int> out(64), expected(64);
  for (int i = 0; i < 64; ++i) expected[static_cast<std::size_t>(i)] = (i + 1) % 64;
  LOCKSTEP_LAUNCH(reads_its_neighbour, 1, 64, 64 * sizeof(int), stream, out.data());
  EXPECT_NE(out, expected);
  LOCKSTEP_LAUNCH(all_write_one, 1, 64, 0, stream, out.data());
  EXPECT_EQ(out[0], GetParam() == emulated_cuda::Order::kForwards ? 63 : 0);
}
#endif

#ifdef EMULATED_UNDER_ASAN
__global__ void reads_one_too_many(const float* in, float* out) {
  if (threadIdx.x == 0) *out = in[7];
}

TEST_P(Emulation, WhatLiesOutsideOfAnArrayIsAReport) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  float out = 0;
  const std::vector<float> seven(7);
  EXPECT_DEATH(LOCKSTEP_LAUNCH(reads_one_too_many, 1, 32, 0, stream, seven.data(), &out), "heap-buffer-overflow");
  testing::GuardedBench bench(cpu_device(), testing::emulated_kernels(), DType::kFloat32, testing::Values::kGiven);
  const float* const guarded = bench.in({7}, testing::Floats(7)).floats();
  EXPECT_DEATH(LOCKSTEP_LAUNCH(reads_one_too_many, 1, 32, 0, stream, guarded, &out), "use-after-poison");
}
#endif

__global__ void some_leave() {
  if (threadIdx.x < 3) return;
  __syncthreads();
}
__global__ void a_lane_is_missing() {
  if (threadIdx.x % 32 != 5) __shfl_xor_sync(0xffffffffU, 1, 1);
}

__global__ void reads_a_lane_outside() {
  if (threadIdx.x < 2) __shfl_xor_sync(0x3U, 1, 2);
}
__global__ void masks_differ() {
  if (threadIdx.x < 2) __shfl_xor_sync(threadIdx.x == 0 ? 0x3U : 0x2U, 1, 0);
}

TEST_P(Emulation, ThreadsThatWouldWaitForEverAreAnError) {
  const auto message_of = [&](auto launch) {
    try {
      launch();
    } catch (const std::logic_error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message_of([&] { LOCKSTEP_LAUNCH(some_leave, 1, 40, 0, stream, ); }),
            "some_leave: of 40 threads of a block 37 wait in __syncthreads(), 0 in a shuffle whose lanes do not arrive "
            "or read others, and 3 "
            "have ended: they wait forever");
  EXPECT_THAT(message_of([&] { LOCKSTEP_LAUNCH(a_lane_is_missing, 1, 64, 0, stream, ); }),
              HasSubstr("62 in a shuffle"));
  EXPECT_THAT(message_of([&] { LOCKSTEP_LAUNCH(reads_a_lane_outside, 1, 32, 0, stream, ); }),
              HasSubstr("2 in a shuffle"));
  EXPECT_THAT(message_of([&] { LOCKSTEP_LAUNCH(masks_differ, 1, 32, 0, stream, ); }), HasSubstr("1 in a shuffle"));
  int out = 0;
  const int in[256] = {1};
  // The emulation works again.
  LOCKSTEP_LAUNCH(sum_with_shuffles, 1, 256, 0, stream, static_cast<const int*>(in), &out);
  EXPECT_EQ(out, 1);
}

TEST_P(Emulation, SizesThatNoGpuTakesAreRefused) {
  std::vector<int> out(1);
  EXPECT_THROW(LOCKSTEP_LAUNCH(votes, 0, 32, 0, stream, out.data()), Error);
  EXPECT_THROW(LOCKSTEP_LAUNCH(votes, 1, 1025, 0, stream, out.data()), Error);
  EXPECT_THROW(LOCKSTEP_LAUNCH(votes, dim3(1, 65536), 32, 0, stream, out.data()), Error);
  EXPECT_THROW(LOCKSTEP_LAUNCH(votes, 1, 32, 48 * 1024 + 1, stream, out.data()), Error);
}

TEST_P(Emulation, MoreSharedMemoryMustBeAskedFor) {
  std::vector<int> out(32);
  const auto launch = [&](std::size_t bytes) { LOCKSTEP_LAUNCH(votes, 1, 32, bytes, stream, out.data()); };
  EXPECT_EQ(cudaFuncSetAttribute(votes, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 * 1024), cudaSuccess);
  launch(99 * 1024);
  EXPECT_THROW(launch(99 * 1024 + 1), Error);
  EXPECT_NE(cudaFuncSetAttribute(votes, cudaFuncAttributeMaxDynamicSharedMemorySize, 99 * 1024 + 1), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(votes, cudaFuncAttributeMaxDynamicSharedMemorySize, 0), cudaSuccess);
  EXPECT_THROW(launch(48 * 1024 + 1), Error);
}

__global__ void neighbours_of_warp(int* out) {
  int* const values = dynamic_shared<int>();
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp();
  const int neighbour = values[threadIdx.x ^ 1U];
  __syncwarp();
  values[threadIdx.x] = neighbour + 100;
  __syncwarp();
  out[threadIdx.x] = values[threadIdx.x ^ 2U];
}

TEST_P(Emulation, LanesWaitForEachOther) {
  std::vector<int> out(64), expected(64);
  for (unsigned i = 0; i < 64; ++i) expected[i] = static_cast<int>((i ^ 3U) + 100);
  LOCKSTEP_LAUNCH(neighbours_of_warp, 1, 64, 64 * sizeof(int), stream, out.data());
  EXPECT_EQ(out, expected);
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
  EXPECT_EXIT(std::_Exit(kind_of_convolution()), ::testing::ExitedWithCode(0), "");
  const auto with = [](const char* name) {
    setenv(name, "1", 1);
    std::_Exit(kind_of_convolution());
  };
  EXPECT_EXIT(with("LOCKSTEP_TF32"), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(with("LOCKSTEP_CUDNN_NONDETERMINISTIC"), ::testing::ExitedWithCode(3), "");
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
  EXPECT_EXIT(std::_Exit(kind_of_products()), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(with("0"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(with("1"), ::testing::ExitedWithCode(1), "");
}

TEST(EmulatedCudnn, EnginesThatRemainAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("LOCKSTEP_LOG_LEVEL", "debug", 1);
  const auto compute = [] {
    kind_of_convolution();
    std::_Exit(0);
  };
  EXPECT_EXIT(compute(), ::testing::ExitedWithCode(0),
              "engines that remain for [^:]*convolution[^:]*: emulated_engine_5\n");
  setenv("LOCKSTEP_TF32", "1", 1);
  EXPECT_EXIT(compute(), ::testing::ExitedWithCode(0),
              "emulated_engine_3, emulated_engine_5\n(.|\n)*fastest engine for .*: emulated_engine_3\n");
  unsetenv("LOCKSTEP_TF32");
  unsetenv("LOCKSTEP_LOG_LEVEL");
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
              ::testing::HasSubstr("the driver is broken"));
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
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "");
}

// The kernels that convolutions use in addition to cuDNN, on images of 2 x 3 with 1 channel.
TEST_P(Emulation, ImagesAreShiftedAndCropped) {
  const std::vector<float> in = {1, 2, 3, 4, 5, 6};
  std::vector<float> larger(4 * 4, 9), back(6, 1);
  shift_images({1, 1, 2, 3, 4, 4, 1, 0}, {in.data(), {1, 2, 3, 1}}, {larger.data(), {1, 4, 4, 1}}, stream);
  EXPECT_EQ(larger, (std::vector<float>{0, 0, 0, 0, 1, 2, 3, 0, 4, 5, 6, 0, 0, 0, 0, 0}));
  shift_images({1, 1, 4, 4, 2, 3, -1, 0}, {larger.data(), {1, 4, 4, 1}}, {back.data(), {1, 2, 3, 1}, true}, stream);
  EXPECT_EQ(back, (std::vector<float>{2, 3, 4, 5, 6, 7}));
}

}  // namespace
}  // namespace lockstep::cuda
