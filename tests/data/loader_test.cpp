#include "lockstep/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <type_traits>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "tests/support/log_lines.h"

namespace lockstep::data {
namespace {

// Sample i of epoch e is (i, e).
class Counting : public FixedShapeDataset {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::vector<TensorSpec> element_spec() const override { return {{{2}}, {{}, DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override {
    if (index == broken_at) throw FileError("sample {} is broken", index);
    row.span<float>(0)[0] = static_cast<float>(index);
    row.span<float>(0)[1] = static_cast<float>(epoch);
    row.value<std::int64_t>(1) = index;
    ++reads;
  }
  std::int64_t broken_at = -1;
  mutable std::atomic<int> reads{0};

 private:
  std::int64_t size_;
};

std::vector<std::int64_t> targets_of(DataLoader& loader) {
  std::vector<std::int64_t> all;
  for (auto& [inputs, targets] : loader)
    for (std::size_t i = 0; i < targets.span<std::int64_t>().size(); ++i) {
      EXPECT_EQ(inputs.span<float>()[2 * i], static_cast<float>(targets.span<std::int64_t>()[i]));
      all.push_back(targets.span<std::int64_t>()[i]);
    }
  return all;
}

TEST(DataLoader, GivesTheSamplersIndicesInOrder) {
  const Counting set(23);
  DistributedSampler sampler(23, {1, 2, 1, 2}, {.seed = 2});
  DataLoader loader(set, sampler, {.batch_size = 4});
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(targets_of(loader), sampler.indices());
  EXPECT_EQ(targets_of(loader), sampler.indices()) << "a second pass is the same pass";
  sampler.set_epoch(1);
  EXPECT_EQ(targets_of(loader), sampler.indices());
}

// A temporary set or sampler in a range-for would be destroyed before the first batch.
static_assert(std::is_constructible_v<DataLoader, Counting&, DistributedSampler&, DataLoaderOptions>);
static_assert(!std::is_constructible_v<DataLoader, Counting&, DistributedSampler, DataLoaderOptions>);
static_assert(!std::is_constructible_v<DataLoader, Counting, DistributedSampler&, DataLoaderOptions>);

TEST(DataLoader, TheLastBatchIsSmallerOrDropped) {
  const Counting set(10);
  const DistributedSampler sampler(10, {}, {.shuffle = false});
  std::vector<std::int64_t> sizes;
  for (auto& batch : DataLoader(set, sampler, {.batch_size = 4})) sizes.push_back(batch.inputs().shape()[0]);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 4, 2}));
  sizes.clear();
  for (auto& batch : DataLoader(set, sampler, {.batch_size = 4, .drop_last = true}))
    sizes.push_back(batch.inputs().shape()[0]);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 4}));
  sizes.clear();
  for (auto& batch : DataLoader(set, sampler, {.batch_size = std::numeric_limits<std::int64_t>::max()}))
    sizes.push_back(batch.inputs().shape()[0]);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{10}));
}

// Positions that a sampler repeats or drops for the ranks do not change its size. A sampler of fewer samples reads a
// subset.
TEST(DataLoader, RefusesASamplerOfMoreSamplesThanTheSetHas) {
  const Counting set(10);
  const DistributedSampler larger(14, {0, 2, 0, 2}), padded(10, {3, 4, 3, 4}), subset(6, {}, {.shuffle = false});
  try {
    DataLoader(set, larger, {.batch_size = 2});
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("the sampler is for 14 samples, but the data set has 10"),
              std::string::npos)
        << error.what();
  }
  DataLoader repeating(set, padded, {.batch_size = 2}), some(set, subset, {.batch_size = 4});
  EXPECT_EQ(targets_of(repeating).size(), 3u);
  EXPECT_EQ(targets_of(some), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(DataLoader, RefusesBatchesLargerThanTheSet) {
  const Counting set(3);
  const DistributedSampler sampler(3, {});
  EXPECT_THROW(DataLoader(set, sampler, {.batch_size = 4, .drop_last = true}), InvalidArgument);
  EXPECT_THROW(DataLoader(set, sampler, {.batch_size = 0}), InvalidArgument);
}

TEST(DataLoader, RethrowsADataSetsExceptionAfterTheBatchesBeforeIt) {
  Counting set(10);
  set.broken_at = 7;
  const DistributedSampler sampler(10, {}, {.shuffle = false});
  int batches = 0;
  try {
    for ([[maybe_unused]] auto& batch : DataLoader(set, sampler, {.batch_size = 2})) ++batches;
    FAIL() << "nothing was thrown";
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "DataLoader: sample 7 of epoch 0: sample 7 is broken");
  }
  EXPECT_EQ(batches, 3);
}

TEST(DataLoader, NumbersItsRowsAmongAllRanksSamplesWhileAPassLasts) {
  Counting set(12);
  DistributedSampler sampler(12, {1, 3, 1, 3}, {.shuffle = false});
  const SampleNumbers outside{.first = 24, .stride = 1}, inside{.first = 1, .stride = 3};
  set_sample_numbers(outside);
  DataLoader loader(set, sampler, {.batch_size = 2});
  int batches = 0;
  for (auto& [inputs, targets] : loader) {
    EXPECT_EQ(sample_numbers(), inside);
    const std::span<const std::int64_t> taken = targets.span<std::int64_t>();
    for (std::int64_t row = 0; row < 2; ++row)
      EXPECT_EQ(taken[static_cast<std::size_t>(row)], batches * 6 + inside.first + row * inside.stride);
    DistributedSampler alone(12, {}, {.shuffle = false});  // like an evaluation between two steps
    for (auto& batch : DataLoader(set, alone, {.batch_size = 4}))
      EXPECT_EQ(sample_numbers(), SampleNumbers{}) << batch.size();
    EXPECT_EQ(sample_numbers(), inside);
    set_first_sample(7);
    ++batches;
  }
  EXPECT_EQ(batches, 2);
  EXPECT_EQ(sample_numbers(), outside);
  {
    DataLoader left(set, sampler, {.batch_size = 2});
    EXPECT_EQ((*left.begin()).inputs().shape()[0], 2);
    EXPECT_EQ(sample_numbers(), inside);
  }
  EXPECT_EQ(sample_numbers(), outside) << "after a pass that was left early";
  set.broken_at = 7;
  EXPECT_THROW(targets_of(loader), FileError);
  EXPECT_EQ(sample_numbers(), outside) << "after a pass that an exception ended";
  set_sample_numbers({});
}

TEST(DataLoader, OverlappingPassesRestoreTheNumbers) {
  const Counting set(12);
  const DistributedSampler one(12, {1, 3, 1, 3}, {.shuffle = false}), other(12, {0, 2, 0, 2}, {.shuffle = false});
  const SampleNumbers outside{.first = 24, .stride = 1};
  set_sample_numbers(outside);
  for (const bool first_ends_first : {true, false}) {
    DataLoader first(set, one, {.batch_size = 2}), second(set, other, {.batch_size = 2});
    auto of_first = first.begin(), of_second = second.begin();
    const auto finish = [](auto& at, const auto& end) {
      while (at != end) ++at;
    };
    first_ends_first ? finish(of_first, first.end()) : finish(of_second, second.end());
    first_ends_first ? finish(of_second, second.end()) : finish(of_first, first.end());
    EXPECT_EQ(sample_numbers(), outside) << first_ends_first;
  }
  set_sample_numbers({});
}

TEST(DataLoader, EndsItsThreadWhenLeftEarlyAndWorksAhead) {
  const Counting set(1000);
  const DistributedSampler sampler(1000, {}, {.shuffle = false});
  for (int i = 0; i < 20; ++i)
    for ([[maybe_unused]] auto& batch : DataLoader(set, sampler, {.batch_size = 10, .prefetch = 3})) break;
  EXPECT_LE(set.reads, 20 * 60) << "at most the current batch, three ahead and one in progress";
}

// All samples of the second batch except the first take 20 ms: four seconds in total.
class SlowSecondBatch : public Dataset {
 public:
  std::int64_t size() const override { return 400; }
  Sample get(std::int64_t index, std::int64_t) const override {
    if (index >= 200) {
      ++reads;
      if (index > 200) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return {scalar(index)};
  }
  mutable std::atomic<int> reads = 0;
};

TEST(DataLoader, ItsDestructorDoesNotWaitForABatchOfSlowSamples) {
  const SlowSecondBatch set;
  const DistributedSampler sampler(set.size(), {}, {.shuffle = false});
  {
    DataLoader loader(set, sampler, {.batch_size = 200, .prefetch = 2});
    loader.begin();
    while (set.reads == 0) std::this_thread::yield();
  }
  EXPECT_LT(set.reads, 200) << "the entire batch was made although nobody needed it";
}

TEST(DataLoader, WarnsOnceOfASecondPassInTheSameOrder) {
  const Counting set(8);
  const auto warnings = [&](bool shuffles, bool sets_epochs) {
    const testing::LogLines lines;
    DistributedSampler sampler(8, {}, {.shuffle = shuffles, .seed = 1});
    for (int epoch = 0; epoch < 4; ++epoch) {
      if (sets_epochs) sampler.set_epoch(epoch);
      for ([[maybe_unused]] auto& batch : DataLoader(set, sampler, {.batch_size = 4})) {
      }
    }
    const std::string text = lines.text();
    EXPECT_EQ(text.find("a second pass begins in epoch 0") != std::string::npos, shuffles && !sets_epochs) << text;
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 1) << text;
  };
  for (const bool shuffles : {false, true})
    for (const bool sets_epochs : {false, true}) warnings(shuffles, sets_epochs);
}

TEST(DataLoader, BatchesComeFromTheAllocatorsCache) {
  const Counting set(400);
  const DistributedSampler sampler(400, {});
  DataLoader loader(set, sampler, {.batch_size = 10});
  targets_of(loader);
  const auto before = cpu_device().allocator_stats().system_allocations;
  targets_of(loader);
  EXPECT_LE(cpu_device().allocator_stats().system_allocations, before + 2)
      << "at most the batches that a slower consumer leaves in progress";
}

}  // namespace
}  // namespace lockstep::data
