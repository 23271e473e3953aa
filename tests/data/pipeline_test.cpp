// Tests of pipelines: chains of calls with tf.data's names.
#include "lockstep/data/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "lockstep/core/error.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sample i is i; the set counts its reads.
class CountedNumbers : public Dataset {
 public:
  explicit CountedNumbers(std::int64_t size,
                          std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0))
      : size_(size), reads_(std::move(reads)) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, std::int64_t) const override {
    ++*reads_;
    return {scalar<std::int64_t>(index), scalar<std::int64_t>(index * 10)};
  }

 private:
  std::int64_t size_;
  std::shared_ptr<std::atomic<int>> reads_;
};

using Order = std::vector<std::int64_t>;

Order order_of(const Pipeline& pipeline, std::int64_t epoch = 0, const EpochOptions& options = {}) {
  Order order;
  auto batches = pipeline.epoch(epoch, options);
  for (auto& [inputs, targets] : batches) {
    for (const std::int64_t number : inputs.span<std::int64_t>()) order.push_back(number);
    EXPECT_EQ(inputs.count(), targets.count());
  }
  return order;
}

// In a set sorted by class, the first hundred samples would all have one class.
TEST(Pipeline, TakesFromTheShuffledOrder) {
  const auto shuffled = Pipeline(CountedNumbers(1000)).shuffle(0, 1);
  const auto part = shuffled.take(100).batch(10), rest = shuffled.skip(100).batch(10);
  std::set<std::int64_t> classes, in_part, in_rest;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const Order order = order_of(part, epoch);
    EXPECT_EQ(order.size(), 100U);
    for (const std::int64_t number : order) classes.insert(number / 100), in_part.insert(number);
    for (const std::int64_t number : order_of(rest, epoch)) in_rest.insert(number);
  }
  EXPECT_GT(classes.size(), 5U);
  EXPECT_EQ(in_part.size(), 100U) << "the same in every epoch";
  EXPECT_EQ(in_rest.size(), 900U);
  for (const std::int64_t number : in_part) EXPECT_EQ(in_rest.count(number), 0U) << "in both parts";
  EXPECT_NE(order_of(part, 0), order_of(part, 1)) << "each epoch has its own order";
}

TEST(Pipeline, RefusesAnInvalidPlace) {
  const auto pipeline = Pipeline(CountedNumbers(10)).batch(2);
  for (const Place& place : {Place{0, 0}, Place{0, -1}, Place{-1, 2}, Place{2, 2}, Place{.rank = 1}})
    EXPECT_THROW(pipeline.epoch(0, {.place = place}), InvalidArgument) << place.rank << " of " << place.world_size;
}

TEST(Pipeline, SupportsTheChainsOfTheTutorials) {
  const auto reads = std::make_shared<std::atomic<int>>(0);
  const auto train = Pipeline(CountedNumbers(100, reads)).shuffle(30, 1).batch(32).prefetch(3, 2).cache();
  EXPECT_EQ(*reads, 0) << "nothing is read before epoch()";
  Order first = order_of(train, 0), second = order_of(train, 1);
  EXPECT_EQ(*reads, 100) << "cache() keeps samples at any place in the chain";
  EXPECT_NE(first, second) << "each epoch has its own order";
  EXPECT_EQ(order_of(train, 0), first);
  std::sort(first.begin(), first.end());
  Order all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(first, all);
  EXPECT_EQ(train.batches(), 4);
  EXPECT_EQ(train.epoch(0).batches(), 4);
  EXPECT_EQ(train.epoch(0, {.remainder = Remainder::kDrop}).batches(), 3);
}

TEST(Pipeline, KeepsTheOrderOfTheSetWithoutShuffle) {
  const auto chain = Pipeline(CountedNumbers(6)).map([](Sample sample) {
    return Sample{scalar(sample[0].span<std::int64_t>()[0] + 1), sample[1]};
  });
  EXPECT_THAT(order_of(chain.skip(1).take(3).batch(2)), ElementsAre(2, 3, 4));
}

TEST(Pipeline, BatchSizesAreOverAllRanks) {
  const auto chain = Pipeline(CountedNumbers(8)).batch(4);
  EXPECT_THAT(order_of(chain, 0, {.place = {1, 2, 1, 2}}), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(chain.epoch(0, {.place = {1, 2, 1, 2}}).batches(), 2);
  EXPECT_THAT(message_of([&] {
                chain.epoch(0, {.place = {2, 3, 2, 3}});
              }),
              HasSubstr("rank 2: a batch of 4 samples cannot be divided evenly among 3 ranks"));
}

TEST(Pipeline, AnEpochMayBeginInTheMiddle) {
  const auto reads = std::make_shared<std::atomic<int>>(0);
  const auto chain = Pipeline(CountedNumbers(11, reads)).shuffle(0, 4).batch(4);
  const auto from = [&](std::int64_t first_batch, const Place& place = {}) {
    return order_of(chain, 2, {.place = place, .remainder = Remainder::kDrop, .first_batch = first_batch});
  };
  const Order whole = from(0);
  *reads = 0;
  EXPECT_EQ(from(1), Order(whole.begin() + 4, whole.end()));
  EXPECT_EQ(*reads, 4) << "earlier samples are not read";
  EXPECT_EQ(from(1, {1, 2, 1, 2}), (Order{whole[5], whole[7]}));
  EXPECT_EQ(order_of(chain, 2, {.first_batch = 2}).size(), 3U) << "the last, smaller one";
  EXPECT_THAT(message_of([&] { from(2); }), HasSubstr("first_batch is 2, but an epoch has batches 0 to 1"));
  EXPECT_THAT(message_of([&] { from(-1); }), HasSubstr("first_batch is -1"));
}

TEST(Pipeline, CallsDoNotChangeTheOriginal) {
  const auto plain = Pipeline(CountedNumbers(4)).batch(2);
  const auto shuffled = plain.shuffle(0, 7);
  EXPECT_THAT(order_of(plain), ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(plain.is_shuffled());
  EXPECT_TRUE(shuffled.is_shuffled());
}

// When an epoch is replaced by another one, its threads read its set until they are stopped.
TEST(Pipeline, AnEpochMayBeReplacedWhileItIsRead) {
  struct Readers {
    std::atomic<int> reading = 0;
    std::atomic<bool> went_while_read = false;
  };
  class Slow : public Dataset {
   public:
    explicit Slow(std::shared_ptr<Readers> readers) : readers_(std::move(readers)) {}
    ~Slow() override {
      if (readers_->reading > 0) readers_->went_while_read = true;
    }
    std::int64_t size() const override { return 64; }
    Sample get(std::int64_t index, std::int64_t) const override {
      const std::shared_ptr<Readers> readers = readers_;
      ++readers->reading;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      --readers->reading;
      return {scalar<std::int64_t>(index), scalar<std::int64_t>(index)};
    }

   private:
    std::shared_ptr<Readers> readers_;
  };
  const auto readers = std::make_shared<Readers>();
  PipelineEpoch epoch = Pipeline(std::make_shared<Slow>(readers)).batch(4).prefetch(4, 2).epoch(0);
  EXPECT_EQ((*epoch.begin()).inputs().count(), 4);
  epoch = Pipeline(CountedNumbers(8)).batch(4).epoch(0);
  EXPECT_EQ(readers.use_count(), 1) << "the first set is destroyed";
  EXPECT_EQ(readers->reading, 0);
  EXPECT_FALSE(readers->went_while_read);
  EXPECT_EQ((*epoch.begin()).inputs().count(), 4);
}

TEST(Pipeline, RefusesInvalidChains) {
  const Pipeline plain(CountedNumbers(4));
  const auto same = [](Sample sample) { return sample; };
  EXPECT_THAT(message_of([&] { plain.epoch(0); }), HasSubstr("call batch() first"));
  EXPECT_THAT(message_of([&] { plain.batch(2).map(same); }), HasSubstr("Pipeline::map() after batch()"));
  EXPECT_THAT(message_of([&] { plain.batch(2).take(1); }), HasSubstr("Pipeline::take() after batch()"));
  EXPECT_THAT(message_of([&] { plain.batch(0); }), HasSubstr("Pipeline::batch(0): at least one"));
  EXPECT_THAT(message_of([&] { plain.batch(2).batch(3); }), HasSubstr("has batches of 2 already"));
  EXPECT_THAT(message_of([&] { plain.shuffle(-1); }), HasSubstr("the buffer must not be negative"));
  EXPECT_THAT(message_of([&] { plain.shuffle().shuffle(); }), HasSubstr("shuffled already"));
  EXPECT_THAT(message_of([&] { plain.prefetch(0); }), HasSubstr("must be positive"));
  EXPECT_THAT(message_of([&] { Pipeline(CountedNumbers(0)).batch(2).epoch(0); }), HasSubstr("the data set is empty"));
  EXPECT_THAT(message_of([&] { plain.batch(5).epoch(0, {.remainder = Remainder::kDrop}); }),
              AllOf(HasSubstr("5 samples"), HasSubstr("has 4")));
}

// As in tf.data: no sample comes more than buffer - 1 positions early, and each comes once.
TEST(ShuffleBuffer, DrawsFromTheBuffer) {
  for (const std::int64_t buffer : {1, 2, 10, 99, 1000}) {
    Order order = order_of(Pipeline(CountedNumbers(100)).shuffle(buffer, 5).batch(10));
    for (std::int64_t place = 0; place < 100; ++place)
      EXPECT_LT(order[static_cast<std::size_t>(place)] - place, buffer);
    EXPECT_EQ(std::is_sorted(order.begin(), order.end()), buffer == 1);
    std::sort(order.begin(), order.end());
    for (std::int64_t place = 0; place < 100; ++place) ASSERT_EQ(order[static_cast<std::size_t>(place)], place);
  }
  EXPECT_EQ(order_of(Pipeline(CountedNumbers(100)).shuffle(1000, 5).batch(10)),
            order_of(Pipeline(CountedNumbers(100)).shuffle(0, 5).batch(10)));
  EXPECT_THAT(message_of([] { DistributedSampler(4, {}, {.shuffle_buffer = -1}); }),
              HasSubstr("shuffle_buffer -1 must not be negative"));
}

}  // namespace
}  // namespace lockstep::data
