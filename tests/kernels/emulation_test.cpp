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
