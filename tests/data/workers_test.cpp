// Tests of several loader threads, samples of arbitrary tensors, and errors in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sample i of epoch e has i % 5 + 1 tokens of value i, a weight drawn from (i, e), and a label. Some samples take
// longer.
class Sentences : public Dataset {
 public:
  explicit Sentences(std::int64_t size, bool equal_lengths = false) : size_(size), equal_lengths_(equal_lengths) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, std::int64_t epoch) const override {
    if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    if (on_sample) on_sample(index);
    const std::vector<std::int32_t> tokens(equal_lengths_ ? 4U : static_cast<std::size_t>(index % 5 + 1),
                                           static_cast<std::int32_t>(index));
    Philox random(1, static_cast<std::uint64_t>(epoch * size_ + index));
    return {Tensor::from(std::span(tokens), {static_cast<std::int64_t>(tokens.size())}),
            scalar<double>(random.uniform()), scalar(index)};
  }
  std::function<void(std::int64_t)> on_sample;

 private:
  std::int64_t size_;
  bool equal_lengths_;
};

// Returns all bytes of a pass, with shapes and types.
std::vector<std::string> pass_of(const Dataset& set, const DistributedSampler& sampler,
                                 const DataLoaderOptions& options) {
  std::vector<std::string> batches;
  for (const Batch& batch : DataLoader(set, sampler, options)) {
    std::string text;
    for (const Tensor& tensor : batch) {
      text += std::string(name_of(tensor.dtype())) + tensor.shape().text();
      text.append(reinterpret_cast<const char*>(tensor.buffer().data()), tensor.bytes());
    }
    batches.push_back(text);
  }
  return batches;
}

TEST(Workers, GiveTheSameBatchesInTheSameOrderAsOne) {
  const Sentences ragged(101), equal(101, true);
  DistributedSampler sampler(101, {1, 2, 1, 2}, {.seed = 3});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    const auto one = pass_of(ragged, sampler, {.batch_size = 4, .collate = pad_collate()});
    const auto stacked = pass_of(equal, sampler, {.batch_size = 4});
    ASSERT_EQ(one.size(), 13U);
    for (const int workers : {2, 4, 9, 40})
      for (const int prefetch : {1, 3}) {
        const DataLoaderOptions options{
            .batch_size = 4, .prefetch = prefetch, .num_workers = workers, .collate = pad_collate()};
        EXPECT_EQ(pass_of(ragged, sampler, options), one) << workers << " workers, prefetch " << prefetch;
        EXPECT_EQ(pass_of(equal, sampler, {.batch_size = 4, .prefetch = prefetch, .num_workers = workers}), stacked)
            << workers;
      }
  }
}

TEST(Workers, WorkAtTheSameTime) {
  Sentences set(4, true);
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  set.on_sample = [&](std::int64_t) {  // blocks until two threads are in here
    if (++inside >= 2) met = true;
    while (!met && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  };
  const DistributedSampler sampler(4, {}, {.shuffle = false});
  EXPECT_EQ(pass_of(set, sampler, {.num_workers = 2}).size(), 4U);
  EXPECT_TRUE(met);
}

TEST(Workers, StopWhenThePassIsLeft) {
  Sentences set(1000, true);
  std::atomic<int> reads{0};
  set.on_sample = [&](std::int64_t) { ++reads; };
  const DistributedSampler sampler(1000, {}, {.shuffle = false});
  for (int i = 0; i < 10; ++i)
    for ([[maybe_unused]] auto& batch : DataLoader(set, sampler, {.batch_size = 2, .prefetch = 3, .num_workers = 4}))
      break;
  EXPECT_LE(reads, 10 * 2 * (1 + 1 + 3 + 4)) << "the current batch, its replacement, three ahead, one per worker";
}

template <typename Kind>
std::string failure_of(const Dataset& set, const DataLoaderOptions& options, int* batches = nullptr) {
  const DistributedSampler sampler(set.size(), {}, {.shuffle = false});
  DataLoader loader(set, sampler, options);
  try {
    for ([[maybe_unused]] auto& batch : loader)
      if (batches != nullptr) ++*batches;
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Workers, AnErrorComesInItsPlaceWithTheSamplesNumberAndItsClass) {
  Sentences set(60, true);
  for (const int workers : {1, 4})
    for (int round = 0; round < 5; ++round) {
      set.on_sample = [](std::int64_t index) {
        if (index >= 31) throw FileError("images.bin: record {} is damaged", index);
      };
      int batches = 0;
      EXPECT_EQ(failure_of<FileError>(set, {.batch_size = 4, .num_workers = workers}, &batches),
                "DataLoader: sample 31 of epoch 0: images.bin: record 31 is damaged");
      EXPECT_EQ(batches, 7);
    }
  set.on_sample = [](std::int64_t index) { throw InvalidArgument("no {}", index); };
  EXPECT_EQ(failure_of<InvalidArgument>(set, {.num_workers = 3}), "DataLoader: sample 0 of epoch 0: no 0");
  set.on_sample = [](std::int64_t) { throw std::out_of_range("vector"); };
  EXPECT_EQ(failure_of<Error>(set, {}), "DataLoader: sample 0 of epoch 0: vector");
  set.on_sample = [](std::int64_t) { throw 5; };
  EXPECT_THAT(failure_of<Error>(set, {}),
              HasSubstr("sample 0 of epoch 0: an exception was thrown that does not derive from std::exception"));
}

TEST(Workers, TheDataSetsExceptionIsNested) {
  Sentences set(3, true);
  set.on_sample = [](std::int64_t) { throw std::out_of_range("vector"); };
  const DistributedSampler sampler(3, {});
  try {
    DataLoader(set, sampler, {}).begin();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(Workers, APassAfterAnErrorIsComplete) {
  Sentences set(20, true);
  const DistributedSampler sampler(20, {}, {.shuffle = false});
  DataLoader loader(set, sampler, {.batch_size = 3, .num_workers = 3});
  set.on_sample = [](std::int64_t index) {
    if (index == 10) throw FileError("once");
  };
  EXPECT_THROW(for ([[maybe_unused]] auto& batch : loader){}, FileError);
  set.on_sample = nullptr;
  int batches = 0;
  for ([[maybe_unused]] auto& batch : loader) ++batches;
  EXPECT_EQ(batches, 7);
}

TEST(Workers, MustBePositive) {
  const Sentences set(3);
  const DistributedSampler sampler(3, {});
  EXPECT_THAT(message_of([&] { DataLoader(set, sampler, {.num_workers = 0}); }),
              HasSubstr("num_workers 0 must be positive"));
}

// -- collate

TEST(Collate, SamplesOfDifferentShapesAreNamedWithTheRemedy) {
  const Sentences set(20);
  EXPECT_THAT(failure_of<InvalidArgument>(set, {.batch_size = 3}),
              AllOf(HasSubstr("DataLoader: samples 1 and 0 of epoch 0: stack: tensor 0"), HasSubstr("int32 (2)"),
                    HasSubstr("int32 (1)"), HasSubstr("pad_collate()")));
}

TEST(Collate, TheUsersFunctionMakesTheBatch) {
  const Sentences set(6);
  const DistributedSampler sampler(6, {}, {.shuffle = false});
  const Collate labels_only = [](std::span<const Sample> samples) {
    std::vector<std::int64_t> labels;
    for (const Sample& sample : samples) labels.push_back(sample[2].span<std::int64_t>()[0]);
    return Batch{Tensor::from(std::span<const std::int64_t>(labels), {static_cast<std::int64_t>(labels.size())})};
  };
  std::vector<std::int64_t> seen;
  for (const Batch& batch : DataLoader(set, sampler, {.batch_size = 4, .collate = labels_only})) {
    ASSERT_EQ(batch.size(), 1U);
    for (const std::int64_t label : batch[0].span<std::int64_t>()) seen.push_back(label);
  }
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  const Collate broken = [](std::span<const Sample>) -> Batch { throw FileError("full"); };
  EXPECT_EQ(failure_of<FileError>(set, {.batch_size = 2, .collate = broken}),
            "DataLoader: the batch of samples 0, 1 of epoch 0: full");
  const Collate none = [](std::span<const Sample>) { return Batch{Tensor()}; };
  EXPECT_THAT(failure_of<InvalidArgument>(set, {.collate = none}),
              HasSubstr("DataLoader: collate returned an undefined tensor as tensor 0 of a batch"));
}

template <typename T> Tensor values(const std::vector<T>& all) {
  return Tensor::from(std::span<const T>(all), {static_cast<std::int64_t>(all.size())});
}
template <typename T> std::vector<T> values_of(const Tensor& tensor) {
  const auto all = tensor.span<T>();
  return {all.begin(), all.end()};
}

TEST(PadCollate, PadsAtTheEndOrTheFront) {
  const std::vector<Sample> samples = {{values<std::int64_t>({1, 2, 3}), scalar<float>(1)},
                                       {values<std::int64_t>({}), scalar<float>(2)},
                                       {values<std::int64_t>({4}), scalar<float>(3)}};
  const Batch padded = pad_collate(-1)(samples);
  EXPECT_EQ(padded[0].shape(), (Shape{3, 3}));
  EXPECT_EQ(values_of<std::int64_t>(padded[0]), (std::vector<std::int64_t>{1, 2, 3, -1, -1, -1, 4, -1, -1}));
  EXPECT_EQ(padded[1].shape(), (Shape{3}));
  EXPECT_EQ(values_of<float>(padded[1]), (std::vector<float>{1, 2, 3}));
  const Batch front = pad_collate({.value = 9, .front = true})(samples);
  EXPECT_EQ(values_of<std::int64_t>(front[0]), (std::vector<std::int64_t>{1, 2, 3, 9, 9, 9, 9, 9, 4}));
}

TEST(PadCollate, CutsAtTheMaximumAndReportsLengths) {
  const std::vector<Sample> samples = {{values<std::int64_t>({1, 2, 3})}, {values<std::int64_t>({4})}};
  const auto [cut, lengths] = pad_collate({.max_length = 2, .lengths = true})(samples).tensors<2>();
  EXPECT_EQ(values_of<std::int64_t>(cut), (std::vector<std::int64_t>{1, 2, 4, 0}));
  EXPECT_EQ(values_of<std::int64_t>(lengths), (std::vector<std::int64_t>{2, 1}));
  const Batch wide = pad_collate({.max_length = 5, .to_max_length = true})(samples);
  EXPECT_EQ(wide[0].shape(), (Shape{2, 5}));
  EXPECT_EQ(values_of<std::int64_t>(wide[0]), (std::vector<std::int64_t>{1, 2, 3, 0, 0, 4, 0, 0, 0, 0}));
}

TEST(PadCollate, KeepsTheEndWhereItCutsTheFront) {
  const std::vector<Sample> samples = {{values<std::int64_t>({1, 2, 3}), scalar<std::int64_t>(7)},
                                       {values<std::int64_t>({4}), scalar<std::int64_t>(8)}};
  const Batch last = pad_collate({.front = true, .max_length = 2, .to_max_length = true, .cut_front = true})(samples);
  EXPECT_EQ(values_of<std::int64_t>(last[0]), (std::vector<std::int64_t>{2, 3, 0, 4}));
  EXPECT_EQ(values_of<std::int64_t>(last[1]), (std::vector<std::int64_t>{7, 8}));
}

TEST(PadCollate, PadsTargetsWithTheirOwnValue) {
  const std::vector<Sample> samples = {{values<std::int64_t>({1, 2}), values<std::int64_t>({5, 6})},
                                       {values<std::int64_t>({3}), values<std::int64_t>({7})}};
  const Batch batch = pad_collate({.target_value = -100, .lengths = true})(samples);
  EXPECT_EQ(values_of<std::int64_t>(batch[0]), (std::vector<std::int64_t>{1, 2, 3, 0}));
  EXPECT_EQ(values_of<std::int64_t>(batch[1]), (std::vector<std::int64_t>{5, 6, 7, -100}));
  EXPECT_EQ(values_of<std::int64_t>(pad_collate(4)(samples)[1]), (std::vector<std::int64_t>{5, 6, 7, 4}))
      << "it defaults to value";
  const std::vector<Sample> single = {{values<std::int64_t>({1, 2})}, {values<std::int64_t>({3})}};
  EXPECT_EQ(values_of<std::int64_t>(pad_collate({.target_value = -100})(single)[0]),
            (std::vector<std::int64_t>{1, 2, 3, 0}));
}

TEST(PadCollate, PadsRowsOfMatricesInTheirType) {
  const std::vector<Sample> samples = {{Tensor::full({1, 2}, 1)}, {Tensor::full({2, 2}, 2)}};
  EXPECT_EQ(values_of<float>(pad_collate(0.5)(samples)[0]), (std::vector<float>{1, 1, 0.5, 0.5, 2, 2, 2, 2}));
  const std::vector<Sample> bytes = {{values<std::uint8_t>({7})}, {values<std::uint8_t>({8, 9})}};
  EXPECT_EQ(values_of<std::uint8_t>(pad_collate(255)(bytes)[0]), (std::vector<std::uint8_t>{7, 255, 8, 9}));
  EXPECT_THAT(message_of([&] { pad_collate(256)(bytes); }), HasSubstr("the value 256 is not representable as uint8"));
  const std::vector<Sample> half = {{Tensor::zeros({1}, DType::kBFloat16)}, {Tensor::zeros({2}, DType::kBFloat16)}};
  const Tensor padded = pad_collate(1)(half)[0];
  std::uint16_t bits = 0;
  std::memcpy(&bits, padded.buffer().data() + 2, 2);
  EXPECT_EQ(bits, 0x3f80);
}

TEST(PadCollate, RefusesSamplesThatDoNotFitTogether) {
  const std::vector<Sample> widths = {{Tensor::full({1, 2}, 1)}, {Tensor::full({1, 3}, 2)}};
  EXPECT_THAT(message_of([&] { pad_collate()(widths); }),
              AllOf(HasSubstr("(1, 3)"), HasSubstr("(1, 2)"), HasSubstr("sample 1")));
  const std::vector<Sample> counts = {{scalar(1.F)}, {scalar(1.F), scalar(2.F)}};
  EXPECT_THAT(message_of([&] { pad_collate()(counts); }), HasSubstr("has 2 tensors, sample 0 has 1"));
  EXPECT_THAT(message_of([&] { pad_collate({.max_length = -1}); }), HasSubstr("max_length -1"));
  EXPECT_THAT(message_of([&] { pad_collate({.to_max_length = true}); }), HasSubstr("max_length 0"));
  EXPECT_THAT(message_of([&] { pad_collate()({}); }), HasSubstr("got no samples"));
}

// -- Batch and Row

TEST(Batch, IsAccessedByNamesIndicesOrAsAWhole) {
  Batch batch{scalar(1.F), scalar(std::int64_t{2})};
  auto& [inputs, targets] = batch;
  EXPECT_TRUE(inputs.is_same(batch[0]) && targets.is_same(batch.targets()) && inputs.is_same(batch.inputs()));
  const Batch three{scalar(1.F), scalar(2.F), scalar(3.F)};
  const auto [a, b, c] = three.tensors<3>();
  EXPECT_EQ(a.item() + b.item() + c.item(), 6);
  EXPECT_THAT(message_of([&] { three.get<0>(); }),
              HasSubstr("cannot be destructured into 2 tensors; it has 3: use batch.tensors<3>()"));
  EXPECT_THAT(message_of([&] { three[3]; }), HasSubstr("tensor 3 does not exist; the batch has 3"));
}

TEST(Row, ChecksTypesAndNumbers) {
  const std::vector<Tensor> stacked = {Tensor::zeros({3, 2}), Tensor::zeros({3}, DType::kInt64)};
  const Row row(stacked, 1, 3);
  row.span<float>(0)[1] = 5;
  row.value<std::int64_t>(1) = 7;
  EXPECT_EQ(values_of<float>(stacked[0]), (std::vector<float>{0, 0, 0, 5, 0, 0}));
  EXPECT_EQ(values_of<std::int64_t>(stacked[1]), (std::vector<std::int64_t>{0, 7, 0}));
  EXPECT_THAT(message_of([&] { row.span<double>(0); }), HasSubstr("float64 requested from a float32"));
  EXPECT_THAT(message_of([&] { row.value<float>(0); }), HasSubstr("has 2 elements in a sample"));
  EXPECT_THAT(message_of([&] { row.bytes(2); }), HasSubstr("tensor 2 does not exist; the sample has 2"));
}

// A set that has an element_spec() but does not write in place.
class Promising : public Sentences {
 public:
  using Sentences::Sentences;
  std::vector<TensorSpec> element_spec() const override {
    return {{{4}, DType::kInt32}, {{}, DType::kFloat64}, {{}, DType::kInt64}};
  }
};

TEST(ElementSpec, MustBeKept) {
  const DistributedSampler sampler(10, {}, {.shuffle = false});
  const Promising kept(10, true), broken(10);
  EXPECT_EQ(pass_of(kept, sampler, {.batch_size = 3}), pass_of(Sentences(10, true), sampler, {.batch_size = 3}));
  EXPECT_THAT(failure_of<InvalidArgument>(broken, {}),
              AllOf(HasSubstr("sample 0 of epoch 0"), HasSubstr("int32 (1)"), HasSubstr("promises int32 (4)")));
}

}  // namespace
}  // namespace lockstep::data
