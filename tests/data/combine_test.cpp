// Tests of data sets made from tensors and from other data sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "lockstep/data/cifar10.h"
#include "lockstep/data/combine.h"
#include "lockstep/data/loader.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;

// Sample i is (i, 10 i) float32 and i int64.
TensorDataset tens(std::int64_t size) {
  const Tensor inputs = Tensor::empty({size, 2}), labels = Tensor::empty({size}, DType::kInt64);
  for (std::int64_t i = 0; i < size; ++i) {
    inputs.data<float>()[2 * i] = static_cast<float>(i);
    inputs.data<float>()[2 * i + 1] = static_cast<float>(10 * i);
    labels.data<std::int64_t>()[i] = i;
  }
  return TensorDataset({inputs, labels});
}

std::vector<float> inputs_of(const Dataset& set, std::int64_t index, std::int64_t epoch = 0) {
  const Sample sample = set.get(index, epoch);
  const auto values = sample[0].span<float>();
  return {values.begin(), values.end()};
}

std::vector<std::int64_t> labels_of(const Dataset& set, const DataLoaderOptions& options = {}) {
  const DistributedSampler sampler(set.size(), {}, {.shuffle = false});
  std::vector<std::int64_t> all;
  for (const auto& [inputs, labels] : DataLoader(set, sampler, options))
    for (const std::int64_t label : labels.span<std::int64_t>()) all.push_back(label);
  return all;
}

TEST(TensorDataset, HasRows) {
  const TensorDataset set = tens(5);
  EXPECT_EQ(inputs_of(set, 3), (std::vector<float>{3, 30}));
  EXPECT_EQ(labels_of(set, {.batch_size = 2}), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  set.get(3, 0)[0].fill(0);
  EXPECT_EQ(inputs_of(set, 3), (std::vector<float>{3, 30})) << "the caller owns a sample";
  EXPECT_THAT(message_of([&] { set.get(5, 0); }), HasSubstr("TensorDataset: sample 5 does not exist; the set has 5"));
  EXPECT_THAT(message_of([&] { set.get(-1, 0); }), HasSubstr("sample -1"));
  EXPECT_THAT(message_of([] {
                TensorDataset({Tensor::zeros({2, 1}), Tensor::zeros({3})});
              }),
              HasSubstr("tensor 1 is (3), but tensor 0 is (2, 1)"));
  EXPECT_THAT(message_of([] { TensorDataset({Tensor::full({}, 1)}); }), HasSubstr("first extents"));
  EXPECT_THAT(message_of([] { TensorDataset(std::vector<Tensor>{}); }), HasSubstr("at least one tensor"));
}

TEST(Map, ChangesSamplesAndTheirShapes) {
  const MappedDataset sums = map(tens(4), [](Sample sample) {
    const auto values = sample[0].span<float>();
    return Sample{scalar(values[0] + values[1]), sample[1]};
  });
  EXPECT_EQ(sums.size(), 4);
  EXPECT_EQ(inputs_of(sums, 2), (std::vector<float>{22}));
  EXPECT_EQ(labels_of(sums, {.batch_size = 3, .num_workers = 2}), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_THAT(message_of([] { map(tens(1), std::function<Sample(Sample)>()); }),
              HasSubstr("map: the function is empty"));
}

TEST(Map, DrawsFromSeedEpochAndIndex) {
  const auto add_noise = [](Sample sample, Philox& random) {
    for (float& value : sample[0].span<float>()) value += random.uniform();
    return sample;
  };
  const MappedDataset noisy = map(tens(4), add_noise, 1), again = map(tens(4), add_noise, 1),
                      other = map(tens(4), add_noise, 2);
  EXPECT_EQ(inputs_of(noisy, 2, 3), inputs_of(again, 2, 3));
  EXPECT_NE(inputs_of(noisy, 2, 3), inputs_of(noisy, 2, 4));
  EXPECT_NE(inputs_of(noisy, 2, 3), inputs_of(other, 2, 3));
  EXPECT_NE(inputs_of(noisy, 2, 3)[0] - 2, inputs_of(noisy, 1, 3)[0] - 1);
}

TEST(Cache, ReadsEachSampleOnceInAnyEpoch) {
  std::atomic<int> reads{0};
  const CachedDataset cached = cache(map(tens(8), [&](Sample sample) {
    ++reads;
    return sample;
  }));
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(labels_of(cached, {.batch_size = 3}).size(), 8U);
  EXPECT_EQ(reads, 8);
  cached.get(3, 0)[0].fill(0);
  EXPECT_EQ(inputs_of(cached, 3), (std::vector<float>{3, 30})) << "the caller cannot change the cached sample";
  const auto epochs = map(
      tens(3),
      [](Sample sample, Philox& random) {
        return Sample{scalar(random.uniform()), sample[1]};
      },
      1);
  const CachedDataset first_in_epoch_2 = cache(epochs);
  EXPECT_EQ(inputs_of(first_in_epoch_2, 1, 2), inputs_of(epochs, 1, 0));
}

TEST(Cache, IsSafeFromSeveralThreads) {
  for (int round = 0; round < 10; ++round) {
    const CachedDataset cached = cache(tens(50));
    const ConcatDataset both = concatenate({cached, cached});  // copies share the cache
    const auto labels = labels_of(both, {.batch_size = 5, .num_workers = 8});
    ASSERT_EQ(labels.size(), 100U);
    for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(labels[i], static_cast<std::int64_t>(i % 50));
  }
}

TEST(Subset, TakesAndSkips) {
  const TensorDataset set = tens(6);
  EXPECT_EQ(labels_of(take(set, 2)), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(labels_of(skip(set, 4), {.batch_size = 2}), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(labels_of(Subset(set, {5, 0, 5})), (std::vector<std::int64_t>{5, 0, 5}));
  EXPECT_EQ(labels_of(concatenate({skip(set, 5), take(set, 2), tens(1)}), {.batch_size = 4}),
            (std::vector<std::int64_t>{5, 0, 1, 0}));
  EXPECT_EQ(skip(set, 6).size(), 0);
  EXPECT_THAT(message_of([&] { take(set, 7); }), HasSubstr("take: cannot select 7 samples from a set of 6"));
  EXPECT_THAT(message_of([&] { skip(set, -1); }), HasSubstr("skip: cannot select -1 samples"));
  EXPECT_THAT(message_of([&] { Subset(set, {6}); }), HasSubstr("sample 6"));
  EXPECT_THAT(message_of([&] { concatenate({}); }), HasSubstr("at least one data set"));
}

TEST(RandomSplit, PartsCoverTheSetAndDependOnTheSeed) {
  const auto parts = random_split(tens(20), {15, 5}, 1), again = random_split(tens(20), {15, 5}, 1),
             other = random_split(tens(20), {15, 5}, 2);
  std::vector<std::int64_t> all = labels_of(parts[0]);
  EXPECT_EQ(labels_of(again[0]), all);
  EXPECT_NE(labels_of(other[0]), all);
  for (const std::int64_t label : labels_of(parts[1])) all.push_back(label);
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 20U);
  EXPECT_THAT(message_of([] {
                random_split(tens(3), {1, 1});
              }),
              HasSubstr("the parts have 2 samples together, but the set has 3"));
}

// A subset of images can also be prepared by a device, with the augmentation of the underlying set's indices.
TEST(Subset, OfImagesIsAnImageSource) {
  const Cifar10 images(GeneratedCifar10{.train_images = 6, .test_images = 1}, {.seed = 3});
  const Subset last = skip(images, 4);
  ASSERT_NE(last.images(), nullptr);
  EXPECT_EQ(last.crop(), 24);
  std::vector<std::uint8_t> planes(3072), expected(3072);
  Augmentation how{}, expected_how{};
  std::int64_t target = 0, expected_target = 0;
  last.read_image(1, 2, planes, how, target);
  images.read_image(5, 2, expected, expected_how, expected_target);
  EXPECT_EQ(planes, expected);
  EXPECT_TRUE(how.top == expected_how.top && how.contrast == expected_how.contrast && target == expected_target);
  EXPECT_EQ(inputs_of(last, 1, 2), inputs_of(images, 5, 2));
  EXPECT_EQ(take(tens(2), 1).images(), nullptr);
}

// A data set that cannot be copied.
class Owner : public Dataset {
 public:
  explicit Owner(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~Owner() override { --alive_; }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  std::int64_t size() const override { return 1; }
  Sample get(std::int64_t, std::int64_t) const override { return {scalar(1.F), scalar(std::int64_t{2})}; }

 private:
  std::atomic<int>& alive_;
};

TEST(KeptDataset, LivesAsLongAsTheSetMadeFromIt) {
  std::atomic<int> alive{0};
  {
    const CachedDataset cached = cache(take(std::make_shared<Owner>(alive), 1));
    EXPECT_EQ(alive, 1);
    EXPECT_EQ(labels_of(cached), (std::vector<std::int64_t>{2}));
  }
  EXPECT_EQ(alive, 0);
  EXPECT_THAT(message_of([] { cache(std::shared_ptr<Owner>()); }), HasSubstr("holds no data set"));
}

}  // namespace
}  // namespace lockstep::data
