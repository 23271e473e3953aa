// The CUDA device: copies, streams, events, memory; and tensors on it.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <thread>

#include "lockstep/autograd/ops.h"
#include "lockstep/tensor/random.h"
#include "tests/gpu/gpu.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kLarge = std::int64_t{32} << 20;  // elements: a copy takes long enough to show the order

using GpuDevice = GpuTest;
using GpuTiming = GpuTest;  // for undisturbed machines: a memory checker slows the device down, but not the host
using GpuTensor = GpuTest;

TEST_F(GpuDevice, SaysWhatItIs) {
  EXPECT_EQ(gpu().kind(), DeviceKind::kCuda);
  EXPECT_EQ(gpu().name(), "cuda:" + std::to_string(gpu().index()));
  EXPECT_THAT(gpu().identity(), StartsWith("GPU-"));
}

TEST_F(GpuDevice, CopiesBothWaysAndWithin) {
  Stream& stream = gpu().default_stream();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{1023}, std::size_t{(5 << 20) + 7}}) {
    std::vector<unsigned char> sent(bytes), received(bytes, 0xEE);
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<unsigned char>(i * 31 + bytes);
    const Buffer first = gpu().allocate(bytes), second = gpu().allocate(bytes);
    EXPECT_EQ(first.device(), &gpu());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 64, 0U);
    gpu().copy(first.data(), sent.data(), bytes, stream);
    gpu().copy(second.data(), first.data(), bytes, stream);
    gpu().copy(received.data(), second.data(), bytes, stream);
    stream.synchronize();
    EXPECT_EQ(received, sent) << bytes << " bytes";
  }
}

// Without the event, the copy on the other stream would read the old values.
TEST_F(GpuDevice, AnEventOrdersOneStreamAfterAnother) {
  const auto other = gpu().new_stream();
  const auto filled = gpu().new_event(), copied = gpu().new_event();
  const Tensor from = Tensor::full({kLarge}, 1, gpu()), to = Tensor::full({kLarge}, 2, gpu());
  gpu().default_stream().synchronize();
  for (int i = 0; i < 50; ++i) from.fill(static_cast<float>(i));
  from.fill(77);
  filled->record(gpu().default_stream());
  filled->stream_wait(*other);
  gpu().copy(to.buffer().data(), from.buffer().data(), from.bytes(), *other);
  copied->record(*other);
  copied->stream_wait(gpu().default_stream());
  EXPECT_THAT(host_values<float>(to), Each(77.0F));
  EXPECT_TRUE(copied->done());
}

TEST_F(GpuTiming, AnEventIsDoneWhenItsWorkIs) {
  const auto event = gpu().new_event();
  const Tensor large = Tensor::full({kLarge}, 1, gpu());
  for (int i = 0; i < 200; ++i) large.fill(static_cast<float>(i));
  event->record(gpu().default_stream());
  EXPECT_FALSE(event->done()) << "200 passes over 128 MiB cannot be over yet: does the host wait for the device?";
  large.fill(0);  // a launch queries CUDA's last error, and "not ready" is not one
  event->synchronize();
  EXPECT_TRUE(event->done());
}

TEST_F(GpuDevice, UploadsWhatWasThereWhenItWasCalled) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{5 << 20}}) {
    std::vector<float> values(count, 3);
    const Tensor there = Tensor::full({static_cast<std::int64_t>(count)}, 1, gpu());
    gpu().upload(there.buffer().data(), values.data(), there.bytes(), gpu().default_stream());
    std::fill(values.begin(), values.end(), 4.0F);
    EXPECT_THAT(host_values<float>(there), Each(3.0F)) << count;
  }
}

TEST_F(GpuDevice, CopiesFromAndToPinnedMemory) {
  constexpr std::size_t kBytes = (3 << 20) + 4;
  const Buffer from = gpu().allocate_pinned(kBytes), to = gpu().allocate_pinned(kBytes), there = gpu().allocate(kBytes);
  EXPECT_EQ(from.device(), &cpu_device());
  std::fill_n(from.data(), kBytes, std::byte{0x5A});
  std::fill_n(to.data(), kBytes, std::byte{0});
  gpu().copy(there.data(), from.data(), kBytes, gpu().default_stream());
  gpu().copy(to.data(), there.data(), kBytes, gpu().default_stream());
  gpu().default_stream().synchronize();
  EXPECT_TRUE(std::equal(from.data(), from.data() + kBytes, to.data()));
}

TEST_F(GpuDevice, AGraphRunsWhenItIsLaunchedAndAsOftenAsThat) {
  Stream& stream = gpu().default_stream();
  const Tensor one = Tensor::full({1000}, 1, gpu()), sum = Tensor::full({1000}, 0, gpu());
  gpu().begin_capture(stream);
  gpu().kernels().add(sum, one, sum, stream);
  const Tensor twice = Tensor::empty({1000}, DType::kFloat32, gpu());  // the graph's own memory
  gpu().kernels().add(one, one, twice, stream);
  gpu().kernels().add(sum, twice, sum, stream);
  const auto graph = gpu().end_capture(stream);
  EXPECT_THAT(host_values<float>(sum), Each(0.0F)) << "recording must not run it";
  for (int i = 0; i < 4; ++i) graph->launch(stream);
  EXPECT_THAT(host_values<float>(sum), Each(12.0F));
}

TEST_F(GpuDevice, HandsFreedMemoryOutAgain) {
  { const Buffer warm = gpu().allocate(3 << 20); }
  const AllocatorStats before = gpu().allocator_stats();
  for (int i = 0; i < 20; ++i) {
    const Buffer buffer = gpu().allocate(3 << 20);
    EXPECT_GE(gpu().allocator_stats().bytes_in_use, before.bytes_in_use + (3 << 20));
  }
  const AllocatorStats after = gpu().allocator_stats();
  EXPECT_EQ(after.system_allocations, before.system_allocations);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_GE(after.bytes_held, after.bytes_in_use);
}

TEST_F(GpuDevice, SaysWhatWasAskedWhenMemoryIsExhausted) {
  const std::string message = message_of([] { gpu().allocate(std::size_t{1} << 50); });
  EXPECT_THAT(message, HasSubstr(gpu().name()));
  EXPECT_THAT(message, HasSubstr("free"));
  EXPECT_EQ(host_values<float>(Tensor::full({3}, 5, gpu())), (std::vector<float>{5, 5, 5}))
      << "the device must keep working";
}

TEST_F(GpuDevice, ServesThreads) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, -1);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&wrong, t] {
      int count = 0;
      for (int i = 0; i < 50; ++i)
        for (const float value : host_values<float>(Tensor::full({1000 + 37 * i}, static_cast<float>(t), gpu())))
          count += value == static_cast<float>(t) ? 0 : 1;
      wrong[static_cast<std::size_t>(t)] = count;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
}

TEST_F(GpuTensor, IsFilledClonedAndRead) {
  const Tensor tensor = Tensor::full({3, 5}, 2.5F, gpu());
  const Tensor copy = tensor.clone();
  tensor.fill(-1);
  EXPECT_THAT(host_values<float>(copy), Each(2.5F));
  EXPECT_THAT(host_values<float>(tensor), Each(-1.0F));
  EXPECT_EQ(Tensor::full({}, 7, gpu()).item(), 7);
  const std::vector<std::int64_t> numbers = {1, -2, std::int64_t{1} << 40};
  EXPECT_EQ(host_values<std::int64_t>(Tensor::from<std::int64_t>(numbers, {3}).to(gpu())), numbers);
}

// Weights are drawn on the host, so a model has the same ones on every device.
TEST_F(GpuTensor, RandomValuesAreThoseOfTheCpu) {
  const auto draw = [](Device& device) {
    manual_seed(3);
    const Tensor tensor = Tensor::empty({1001}, DType::kFloat32, device);
    fill_truncated_normal(tensor, 0, 0.1F);
    return host_values<float>(tensor);
  };
  EXPECT_EQ(draw(gpu()), draw(cpu_device()));
}

TEST_F(GpuTensor, OnTheWrongDeviceIsAnErrorThatNamesBoth) {
  const Tensor x = Tensor::zeros({2, 3}, DType::kFloat32, gpu()), weight = Tensor::zeros({4, 3});
  const std::string message = message_of([&] { linear(x, weight, {}); });
  EXPECT_THAT(message, HasSubstr("cpu"));
  EXPECT_THAT(message, HasSubstr(gpu().name()));
}

}  // namespace
}  // namespace lockstep::testing
