// Batches on their way to a GPU: through pinned memory and a separate stream, ordered by events, without the host
// waiting for a copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "lockstep/data/cifar10.h"
#include "lockstep/data/length_bucket_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/stream_loader.h"
#include "tests/support/device_training.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// Sample i: two numbers i, target i.
class Numbers : public data::FixedShapeDataset {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::vector<data::TensorSpec> element_spec() const override { return {{{2}}, {{}, DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t, const data::Row& row) const override {
    if (index == broken_at) throw FileError("sample {} is broken", index);
    const auto input = row.span<float>(0);
    std::fill(input.begin(), input.end(), static_cast<float>(index));
    row.value<std::int64_t>(1) = index;
  }
  std::int64_t broken_at = -1;

 private:
  std::int64_t size_;
};

std::vector<std::int64_t> targets_of(const data::Batch& batch) {
  const Tensor inputs = batch.inputs().to(cpu_device()), targets = batch.targets().to(cpu_device());
  const auto labels = targets.span<std::int64_t>();
  for (std::size_t i = 0; i < labels.size(); ++i)
    EXPECT_EQ(inputs.span<float>()[2 * i + 1], static_cast<float>(labels[i]));
  return {labels.begin(), labels.end()};
}

// Stream 0 computes, stream 1 copies: the positions of their lines, in the order in which the host queued them.
std::vector<std::size_t> places_of(const std::vector<std::string>& log, const std::string& line) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < log.size(); ++i)
    if (log[i] == line) places.push_back(i);
  return places;
}

// The loaders copy to the device; a batch that is there already cannot pass through pinned memory.
TEST(DeviceLoader, RefusesABatchThatCollateMovedItself) {
  RecordingDevice device;
  const auto moved = [&](std::span<const data::Sample> samples) { return data::Batch{samples[0][0].to(device)}; };
  data::StreamLoader stream([] { return std::optional(data::Sample{Tensor::zeros({2})}); },
                            {.device = &device, .collate = moved});
  EXPECT_THAT(
      message_of([&] { stream.next(); }),
      HasSubstr("StreamLoader: collate returned a tensor on cuda:0 as tensor 0 of a batch, expected the CPU: the "
                "loader moves batches, to StreamOptions::device"));
  const Numbers set(3);
  const data::DistributedSampler sampler(3, {}, {.seed = 2});
  data::DataLoader loader(set, sampler, {.device = &device, .collate = moved});
  EXPECT_THAT(message_of([&] { loader.begin(); }),
              HasSubstr("DataLoader: collate returned a tensor on cuda:0 as tensor 0 of a batch"));
}

TEST(DeviceLoader, GivesTheSamplersBatchesOnTheDevice) {
  RecordingDevice device;
  const Numbers set(23);
  const data::DistributedSampler sampler(23, {}, {.seed = 2});
  data::DataLoader loader(set, sampler, {.batch_size = 4, .device = &device});
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<std::int64_t> all;
    for (auto& batch : loader) {
      EXPECT_EQ(&batch.inputs().device(), &device);
      EXPECT_EQ(&batch.targets().device(), &device);
      for (const std::int64_t target : targets_of(batch)) all.push_back(target);
    }
    EXPECT_EQ(all, sampler.indices());
  }
}

TEST(DeviceLoader, SeveralThreadsGiveTheBatchesOfOne) {
  RecordingDevice device;
  const Numbers set(203);
  const data::DistributedSampler sampler(203, {}, {.seed = 2});
  data::DataLoader loader(set, sampler, {.batch_size = 4, .device = &device, .num_workers = 4});
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<std::int64_t> all;
    for (auto& batch : loader)
      for (const std::int64_t target : targets_of(batch)) all.push_back(target);
    EXPECT_EQ(all, sampler.indices());
  }
}

// Batches grow and shrink, and so does the pinned memory that they use in turn.
TEST(DeviceLoader, BatchesOfDifferentSizesKeepTheirSamples) {
  RecordingDevice device;
  const Numbers set(120);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 120; ++i) lengths.push_back(1 + i * 7 % 30);
  const data::LengthBucketSampler sampler(120, lengths, {},
                                          {.batch_size = 100, .max_tokens = 60, .pool_batches = 0, .seed = 1});
  data::DataLoader loader(set, sampler, {.device = &device, .num_workers = 3});
  const data::SampleOrder order = sampler.order();
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<std::int64_t> all, ends;
    for (auto& batch : loader) {
      for (const std::int64_t target : targets_of(batch)) all.push_back(target);
      ends.push_back(static_cast<std::int64_t>(all.size()));
      EXPECT_EQ(loader.state().consumed, static_cast<std::int64_t>(ends.size()));
    }
    EXPECT_EQ(all, order.indices);
    EXPECT_EQ(ends, order.batch_ends);
  }
}

// Their shapes are known only when they arrive; these batches also go through pinned memory and the copying stream.
TEST(DeviceLoader, BatchesOfACollateFunctionAreCopiedBesideTheComputation) {
  RecordingDevice device;
  const Numbers set(200);
  const data::DistributedSampler sampler(200, {}, {.shuffle = false});
  for (const int workers : {1, 3}) {
    std::vector<Tensor> kept;
    device.clear_log();
    int number = 0;
    for (auto& batch : data::DataLoader(
             set, sampler,
             {.batch_size = 4, .device = &device, .num_workers = workers, .collate = data::pad_collate()})) {
      if (++number % 5 == 0) device.hold_default_stream();
      kept.push_back(scale(batch.inputs(), 2));
      if (number % 5 == 1 && number > 1) device.release_default_stream();
    }
    device.release_default_stream();
    EXPECT_EQ(places_of(device.log(), "stream 0: copy").size(), 0U);
    for (std::size_t b = 0; b < kept.size(); ++b)
      for (std::size_t i = 0; i < 8; ++i)
        ASSERT_EQ(values_of(kept[b])[i], 2 * static_cast<float>(4 * b + i / 2)) << "batch " << b;
    for (int i = 0; i < 5; ++i)
      for (auto& batch :
           data::DataLoader(set, sampler, {.batch_size = 4, .device = &device, .collate = data::pad_collate()})) {
        batch.inputs().fill(1);
        break;
      }
  }
}

TEST(DeviceLoader, CopiesOnItsOwnStreamBetweenTwoEvents) {
  RecordingDevice device;
  const Numbers set(8);
  const data::DistributedSampler sampler(8, {}, {.shuffle = false});
  for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 4, .device = &device})) batch.inputs().fill(1);
  const auto log = device.log();
  EXPECT_EQ(places_of(log, "stream 0: copy").size(), 0u) << "the computing stream copies nothing";
  const auto writable = places_of(log, "stream 0: record"), awaited = places_of(log, "stream 1: wait");
  const auto copies = places_of(log, "stream 1: copy"), copied = places_of(log, "stream 1: record"),
             taken = places_of(log, "stream 0: wait");
  const auto kernels = places_of(log, "stream 0: fill");
  ASSERT_EQ(writable.size(), 2u);
  ASSERT_EQ(awaited.size(), 2u);
  ASSERT_EQ(copies.size(), 4u) << "inputs and targets";
  ASSERT_EQ(copied.size(), 4u) << "for the batch, and for the host memory";
  ASSERT_EQ(taken.size(), 2u);
  ASSERT_EQ(kernels.size(), 2u);
  for (std::size_t b = 0; b < 2; ++b) {
    EXPECT_LT(writable[b], awaited[b]);
    EXPECT_LT(awaited[b], copies[2 * b]);
    EXPECT_LT(copies[2 * b + 1], copied[2 * b]);
    EXPECT_LT(copied[2 * b], taken[b]);
    EXPECT_LT(taken[b], kernels[b]);
  }
}

TEST(DeviceLoader, TheHostTakesBatchesWhoseCopyIsYetToBeMade) {
  RecordingDevice device;
  const Numbers set(64);
  const data::DistributedSampler sampler(64, {}, {.shuffle = false});
  data::DataLoader loader(set, sampler, {.batch_size = 4, .device = &device, .prefetch = 2});
  device.hold_default_stream();
  auto at = loader.begin();  // its memory is writable once the device has executed the copy: no copy runs
  const data::Batch first = *at;
  ++at;
  const data::Batch second = *at;
  device.release_default_stream();
  EXPECT_EQ(targets_of(first), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(targets_of(second), (std::vector<std::int64_t>{4, 5, 6, 7}));
}

// Batches that a slow device still reads, and host memory that a copy still reads, must not be overwritten by later
// batches.
TEST(DeviceLoader, NoMemoryIsWrittenBeforeItWasRead) {
  RecordingDevice device;
  const Numbers set(400);
  const data::DistributedSampler sampler(400, {}, {.shuffle = false});
  std::vector<Tensor> kept;
  int number = 0;
  for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 4, .device = &device, .prefetch = 3})) {
    if (++number % 5 == 0) device.hold_default_stream();
    kept.push_back(scale(batch.inputs(), 2));  // queued; the batch is destroyed when the next one comes
    if (number % 5 == 1 && number > 1) device.release_default_stream();
  }
  device.release_default_stream();
  for (std::size_t b = 0; b < kept.size(); ++b)
    for (std::size_t i = 0; i < 8; ++i)
      ASSERT_EQ(values_of(kept[b])[i], 2 * static_cast<float>(4 * b + i / 2)) << "batch " << b;
}

TEST(DeviceLoader, APassTakesNoNewMemory) {
  RecordingDevice device;
  const Numbers set(200);
  const data::DistributedSampler sampler(200, {}, {.shuffle = false});
  data::DataLoader loader(set, sampler, {.batch_size = 4, .device = &device});
  for (auto& batch : loader) batch.inputs().fill(1);
  const std::uint64_t before = device.allocator_stats().system_allocations;
  for (auto& batch : loader) batch.inputs().fill(1);
  EXPECT_EQ(device.allocator_stats().system_allocations, before);
}

template <typename T> bool same(std::span<T> a, std::span<T> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// The device augments what the host only reads: the same images as on the CPU, bit for bit if the kernels are the same.
TEST(DeviceLoader, ImagesTravelAsBytesAndAreAugmentedOnTheDevice) {
  const std::string folder = temporary("images");
  std::filesystem::create_directories(folder);
  data::write_generated_cifar10(folder, {.train_images = 30, .test_images = 1});
  RecordingDevice device;
  for (const bool augment : {true, false}) {
    data::ImageAugmentation recipe = data::ImageAugmentation::tutorial();
    if (augment) recipe.normalization = data::normalize_channels({0.5F, 0.4F, 0.3F}, {0.25F, 0.2F, 0.3F});
    const data::Cifar10 set(folder, {.augment = augment, .seed = 4, .augmentation = recipe});
    data::DistributedSampler sampler(set.size(), {}, {.shuffle = true, .seed = 2});
    sampler.set_epoch(3);
    data::DataLoader on_cpu(set, sampler, {.batch_size = 8}),
        on_device(set, sampler, {.batch_size = 8, .device = &device});
    device.clear_log();
    auto expected = on_cpu.begin();
    std::size_t batches = 0;
    for (auto& batch : on_device) {
      EXPECT_EQ(batch.inputs().shape(), (*expected).inputs().shape());
      const Tensor inputs = batch.inputs().to(cpu_device()), targets = batch.targets().to(cpu_device());
      device.default_stream().synchronize();
      EXPECT_TRUE(same(inputs.span<float>(), (*expected).inputs().span<float>())) << "batch " << batches;
      EXPECT_TRUE(same(targets.span<std::int64_t>(), (*expected).targets().span<std::int64_t>()));
      ++expected, ++batches;
    }
    EXPECT_EQ(batches, 4U);
    const std::vector<std::string> log = device.log();
    EXPECT_EQ(
        std::count_if(log.begin(), log.end(), [](const std::string& line) { return line.ends_with(": augment"); }), 4);
    EXPECT_THAT(log, ::testing::Not(Contains("stream 0: augment")));
  }
  std::filesystem::remove_all(folder);
}

TEST(DeviceLoader, EndsEarlyAndRethrows) {
  RecordingDevice device;
  Numbers set(100);
  const data::DistributedSampler sampler(100, {}, {.shuffle = false});
  for (int i = 0; i < 5; ++i)
    for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 4, .device = &device})) {
      batch.inputs().fill(1);
      break;
    }
  set.broken_at = 9;
  int batches = 0;
  EXPECT_THROW(
      {
        for ([[maybe_unused]] auto& batch : data::DataLoader(set, sampler, {.batch_size = 4, .device = &device}))
          ++batches;
      },
      FileError);
  EXPECT_EQ(batches, 2);
}

// While the computing thread records a graph, the loader's thread must not touch the recorded stream.
TEST(DeviceLoader, WorksAheadWhileAGraphIsRecorded) {
  RecordingDevice device;
  const Numbers set(40);
  const data::DistributedSampler sampler(40, {}, {.shuffle = false});
  data::DataLoader loader(set, sampler, {.batch_size = 4, .device = &device, .prefetch = 4});
  auto at = loader.begin();
  const Tensor input = Tensor::empty({4, 2}, DType::kFloat32, device);
  Tensor doubled;
  device.begin_capture(device.default_stream());
  doubled = scale(input, 2);
  // Lets the loader's thread run on; the test is also correct without.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto graph = device.end_capture(device.default_stream());
  EXPECT_THAT(device.log(), Contains("captured, stream 0: scale"));
  for (int number = 0; at != std::default_sentinel; ++at, ++number) {
    input.copy_from((*at).inputs());
    graph->launch(device.default_stream());
    ASSERT_EQ(values_of(doubled)[0], 2 * static_cast<float>(4 * number));
  }
}

}  // namespace
}  // namespace lockstep::testing
