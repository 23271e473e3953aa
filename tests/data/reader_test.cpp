// Reader: order over epochs, the end, seeking, and errors of the data set.
#include "lockstep/data/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;

// Sample i is the number i.
class CountedReads : public Dataset {
 public:
  explicit CountedReads(std::int64_t size, std::int64_t* failures = nullptr) : size_(size), failures_(failures) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, std::int64_t) const override {
    if (failures_ != nullptr && index == 4 && (*failures_)-- > 0) throw Error("sample 4 cannot be read");
    return {scalar<std::int64_t>(index), scalar<std::int64_t>(-index)};
  }

 private:
  std::int64_t size_;
  std::int64_t* failures_;
};

std::vector<std::int64_t> numbers_in(const Batch& batch) {
  const auto values = batch.inputs().span<std::int64_t>();
  return {values.begin(), values.end()};
}

std::vector<std::int64_t> read(Reader& reader, int batches) {
  std::vector<std::int64_t> all;
  for (int i = 0; i < batches; ++i) {
    const auto batch = reader.next();
    if (!batch) break;
    for (const std::int64_t number : numbers_in(*batch)) all.push_back(number);
  }
  return all;
}

TEST(Reader, ReadsEpochAfterEpochInTheOrderOfThePipeline) {
  const Pipeline shuffled = Pipeline(CountedReads(7)).shuffle(0, 3).batch(2);
  std::vector<std::int64_t> expected;
  for (int epoch = 0; epoch < 3; ++epoch)
    for (auto& batch : shuffled.epoch(epoch, {.remainder = Remainder::kDrop}))
      for (const std::int64_t number : numbers_in(batch)) expected.push_back(number);
  Reader endless(shuffled.repeat());
  EXPECT_EQ(endless.batches_per_epoch(), 3);
  EXPECT_EQ(read(endless, 9), expected);
  EXPECT_EQ(endless.position(), 9);
  Reader thrice(shuffled.repeat(3));
  EXPECT_EQ(read(thrice, 20), expected);
  EXPECT_FALSE(thrice.next().has_value());
  Reader once(shuffled, {.remainder = Remainder::kPad});
  EXPECT_EQ(read(once, 20).size(), 7u) << "the last batch has one sample";
}

TEST(Reader, SeeksWithoutReadingWhatComesBefore) {
  const Pipeline shuffled = Pipeline(CountedReads(7)).shuffle(0, 3).repeat().batch(2);
  Reader all(shuffled);
  const std::vector<std::int64_t> expected = read(all, 12);
  for (const std::int64_t batch : {0, 1, 3, 5, 7}) {
    Reader reader(shuffled);
    read(reader, 4);
    reader.seek(batch);
    EXPECT_EQ(read(reader, 3),
              std::vector<std::int64_t>(expected.begin() + 2 * batch, expected.begin() + 2 * batch + 6));
  }
}

TEST(Reader, RanksShareEachBatch) {
  const Pipeline set = Pipeline(CountedReads(8)).repeat().batch(4);
  Reader first(set, {.place = {0, 2, 0, 2}}), second(set, {.place = {1, 2, 1, 2}});
  EXPECT_EQ(read(first, 3), (std::vector<std::int64_t>{0, 2, 4, 6, 0, 2}));
  EXPECT_EQ(read(second, 3), (std::vector<std::int64_t>{1, 3, 5, 7, 1, 3}));
}

TEST(Reader, ReadsABatchAgainAfterAnError) {
  std::int64_t failures = 1;
  Reader reader(Pipeline(CountedReads(6, &failures)).batch(2));
  EXPECT_EQ(read(reader, 2), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_THAT(message_of([&] { reader.next(); }), HasSubstr("sample 4 cannot be read"));
  EXPECT_EQ(read(reader, 2), (std::vector<std::int64_t>{4, 5}));
}

TEST(Reader, RefusesMisuse) {
  EXPECT_THAT(message_of([] { Reader(Pipeline(CountedReads(4))); }), HasSubstr("call batch() first"));
  EXPECT_THAT(message_of([] { Pipeline(CountedReads(4)).repeat(-1); }), HasSubstr("0 for no end"));
  EXPECT_THAT(message_of([] { Pipeline(CountedReads(4)).repeat(2).repeat(); }), HasSubstr("repeats 2 times already"));
  Reader reader(Pipeline(CountedReads(4)).repeat(2).batch(2));
  EXPECT_THAT(message_of([&] { reader.seek(-1); }), HasSubstr("expected a number from 0 to 4"));
  EXPECT_THAT(message_of([&] { reader.seek(5); }), HasSubstr("the batches of 2 epochs"));
  reader.seek(4);
  EXPECT_FALSE(reader.next().has_value());
}

}  // namespace
}  // namespace lockstep::data
