// Tests of StreamLoader and FunctionDataset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

#include "lockstep/data/function_dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/stream_loader.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 0, 1, ... count - 1.
SampleStream numbers(std::int64_t count) {
  return [next = std::int64_t{0}, count]() mutable -> std::optional<Sample> {
    if (next == count) return std::nullopt;
    return Sample{scalar(next++)};
  };
}

std::vector<std::vector<std::int64_t>> batches_of(StreamLoader& loader) {
  std::vector<std::vector<std::int64_t>> all;
  while (const auto batch = loader.next()) {
    const auto values = (*batch)[0].span<std::int64_t>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

TEST(StreamLoader, BatchesComeInTheStreamsOrder) {
  StreamLoader loader(numbers(5), {.batch_size = 2});
  EXPECT_THAT(batches_of(loader), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_FALSE(loader.next().has_value());
  StreamLoader full(numbers(5), {.batch_size = 2, .drop_last = true});
  EXPECT_THAT(batches_of(full), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  StreamLoader empty(numbers(0));
  EXPECT_FALSE(empty.next().has_value());
}

TEST(StreamLoader, RanksHaveDifferentSamples) {
  StreamLoader first(numbers(5), {.batch_size = 1, .place = {0, 2}}),
      second(numbers(5), {.batch_size = 1, .place = {1, 2}});
  EXPECT_THAT(batches_of(first), ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(4)));
  EXPECT_THAT(batches_of(second), ElementsAre(ElementsAre(1), ElementsAre(3)));
  StreamLoader even(numbers(5), {.batch_size = 1, .place = {0, 2}, .drop_last = true});
  EXPECT_THAT(batches_of(even), ElementsAre(ElementsAre(0), ElementsAre(2)));  // as many as rank 1
}

TEST(StreamLoader, ShufflesWithinItsBuffer) {
  const auto order = [](std::uint64_t seed) {
    StreamLoader loader(numbers(100), {.batch_size = 100, .shuffle_buffer = 10, .seed = seed});
    return batches_of(loader).at(0);
  };
  std::vector<std::int64_t> once = order(1);
  EXPECT_EQ(once, order(1));
  EXPECT_NE(once, order(2));
  EXPECT_FALSE(std::is_sorted(once.begin(), once.end()));
  for (std::size_t place = 0; place < once.size(); ++place)
    EXPECT_LE(once[place], static_cast<std::int64_t>(place) + 10);
  std::sort(once.begin(), once.end());
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(once[i], static_cast<std::int64_t>(i));
}

TEST(StreamLoader, AnEndlessStreamIsReadNoFurtherThanNeeded) {
  std::atomic<int> read{0};
  {
    StreamLoader loader([&] { return std::optional(Sample{scalar<std::int64_t>(read++)}); },
                        {.batch_size = 4, .prefetch = 2});
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(loader.next().has_value());
  }
  EXPECT_LE(read, (3 + 2 + 1) * 4);
}

// Without a look at the stop between two samples, the destructor would wait for all of the buffer, or for the samples
// of all ranks. The stream ends long before, after many times the samples that come until the stop.
TEST(StreamLoader, IsDestroyedWhileItFillsItsBuffer) {
  constexpr int kMost = 20'000;
  for (const StreamOptions& options :
       {StreamOptions{.shuffle_buffer = std::int64_t{1} << 40}, StreamOptions{.place = {(1 << 30) - 1, 1 << 30}}}) {
    std::atomic<int> read{0};
    std::promise<void> began;
    {
      const StreamLoader loader(
          [&]() -> std::optional<Sample> {
            if (read++ == 0) began.set_value();
            if (read == kMost) return std::nullopt;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return Sample{scalar<std::int64_t>(0)};
          },
          options);
      began.get_future().wait();
    }
    EXPECT_LT(read, kMost);
  }
}

TEST(StreamLoader, RefusesAnUndefinedTensorOfCollate) {
  StreamLoader loader(numbers(3), {.collate = [](std::span<const Sample> samples) {
                        return Batch{samples[0][0], Tensor()};
                      }});
  EXPECT_THAT(message_of([&] { loader.next(); }),
              HasSubstr("StreamLoader: collate returned an undefined tensor as tensor 1 of a batch"));
  StreamLoader ragged([n = std::int64_t{0}]() mutable { return std::optional(Sample{Tensor::zeros({++n})}); },
                      {.batch_size = 2});
  EXPECT_THAT(message_of([&] { ragged.next(); }), HasSubstr("set the loader's option collate = pad_collate()"));
}

TEST(StreamLoader, RethrowsAfterTheBatchesBefore) {
  int count = 0;
  StreamLoader loader(
      [&]() -> std::optional<Sample> {
        if (count == 3) throw std::runtime_error("the line is down");
        return Sample{scalar<std::int64_t>(count++)};
      },
      {.batch_size = 2});
  ASSERT_TRUE(loader.next().has_value());
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_THAT(message_of([] { StreamLoader(nullptr); }), HasSubstr("is empty"));
  EXPECT_THAT(message_of([] { StreamLoader(numbers(1), {.batch_size = 0}); }), HasSubstr("batch_size 0"));
  EXPECT_THAT(message_of([] { StreamLoader(numbers(1), {.place = {2, 2}}); }), HasSubstr("rank 2 does not exist"));
}

TEST(StreamLoader, NumbersRowsAmongAllRanks) {
  const SampleNumbers before = sample_numbers();
  {
    StreamLoader loader(numbers(4), {.place = {1, 2}});
    ASSERT_TRUE(loader.next().has_value());
    EXPECT_EQ(sample_numbers(), (SampleNumbers{1, 2}));
  }
  EXPECT_EQ(sample_numbers(), before);
}

TEST(FunctionDataset, ReturnsWhatItsFunctionReturns) {
  const FunctionDataset squares(4, [](std::int64_t i) { return Sample{scalar(i), scalar(i * i)}; });
  const DistributedSampler sampler(squares.size(), {}, {.shuffle = false});
  std::vector<std::int64_t> seen;
  DataLoader loader(squares, sampler, {.batch_size = 3, .num_workers = 2});
  for (auto& [x, y] : loader)
    for (const std::int64_t value : y.span<std::int64_t>()) seen.push_back(value);
  EXPECT_THAT(seen, ElementsAre(0, 1, 4, 9));
  EXPECT_THAT(message_of([&] { squares.get(4, 0); }), HasSubstr("sample 4 does not exist; the set has 4"));
  EXPECT_THAT(message_of([] { FunctionDataset(-1, [](std::int64_t) { return Sample{}; }); }), HasSubstr("-1"));
}

}  // namespace
}  // namespace lockstep::data
