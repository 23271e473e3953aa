#include "lockstep/tensor/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "lockstep/tensor/random.h"
#include "src/core/base/half.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).count(), 24);
  EXPECT_EQ((Shape{2, 0}).count(), 0);
  EXPECT_EQ((Shape{2, 3}).text(), "(2, 3)");
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
}

TEST(Shape, RefusesWhatCannotBe) {
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), InvalidArgument);
  EXPECT_THROW((Shape{2, -1}), InvalidArgument);
  const std::int64_t large = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_THROW((Shape{large, 3}).count(), InvalidArgument);
}

TEST(Shape, CountsDimensionsFromTheBackAndReadsNoOther) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[2], 4);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[-3], 2);
  for (const std::int64_t dim :
       {std::int64_t{3}, std::int64_t{-4}, std::int64_t{6}, std::numeric_limits<std::int64_t>::min()})
    EXPECT_NE(message_of([&] { (void)shape[dim]; }).find("in (2, 3, 4): expected -3 to 2"), std::string::npos) << dim;
  EXPECT_NE(message_of([&] { (void)Shape{}[0]; }).find("a scalar has no dimensions"), std::string::npos);
  EXPECT_EQ(Tensor::zeros({5, 7}).shape()[-1], 7);
}

TEST(Tensor, CopiesOfAHandleShareTheMemory) {
  const Tensor a = Tensor::zeros({2, 2});
  const Tensor b = a;
  b.fill(3);
  EXPECT_EQ(a.span<float>()[3], 3);
  EXPECT_TRUE(a.is_same(b));
  const Tensor c = a.clone();
  c.fill(4);
  EXPECT_EQ(a.span<float>()[0], 3);
}

TEST(Tensor, RefusesShapesWhoseBytesOverflow) {
  const std::int64_t huge = std::int64_t{1} << 62;  // four times that is 0 in 64 bits
  EXPECT_THROW(Tensor::empty({huge}), InvalidArgument);
  EXPECT_THROW(Tensor::wrap(Tensor::empty({1}).buffer(), {huge}), InvalidArgument);
}

TEST(Tensor, RebindMovesEveryHandle) {
  const Tensor a = Tensor::full({4}, 1);
  const Tensor b = a;
  const Buffer elsewhere = cpu_device().allocate(16);
  a.rebind(elsewhere);
  EXPECT_EQ(b.data<float>(), reinterpret_cast<float*>(elsewhere.data()));
  EXPECT_THROW(a.rebind(cpu_device().allocate(15)), InvalidArgument);
}

TEST(Tensor, ReshapedIsAViewOfTheSameMemory) {
  const std::array<float, 6> values = {1, 2, 3, 4, 5, 6};
  const Tensor a = Tensor::from<float>(values, {2, 3});
  const Tensor b = a.reshaped({3, 2});
  EXPECT_EQ(b.data<float>(), a.data<float>());
  EXPECT_THROW(a.reshaped({4}), InvalidArgument);
  EXPECT_THROW(Tensor::from<float>(values, {7}), InvalidArgument);
}

TEST(Tensor, MisuseIsAnErrorThatSaysWhatWasAsked) {
  const Tensor labels = Tensor::zeros({3}, DType::kInt64);
  EXPECT_EQ(labels.span<std::int64_t>()[2], 0);
  EXPECT_THROW(labels.data<float>(), InvalidArgument);
  EXPECT_THROW(Tensor().shape(), InvalidArgument);
  EXPECT_THROW(labels.item(), InvalidArgument);
  EXPECT_THROW(Tensor::zeros({2}).copy_from(Tensor::zeros({3})), InvalidArgument);
  EXPECT_THROW(Tensor::zeros({}).backward(), InvalidArgument);
  EXPECT_EQ(Tensor::full({}, 2.5f).item(), 2.5f);
}

TEST(Tensor, FillsFloat32Alone) {
  for (const DType type : {DType::kBFloat16, DType::kFloat64, DType::kInt64, DType::kUInt8}) {
    try {
      Tensor::zeros({2}, type).fill(1);
      FAIL() << name_of(type);
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what())
                    .find("Tensor::fill: " + std::string(name_of(type)) + " of shape (2), expected float32"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Tensor, OneValueOfAnyFloatingTypeIsAnItem) {
  const auto item_of = [](auto value, DType dtype) {
    const Tensor tensor = Tensor::empty({1}, dtype);
    std::memcpy(tensor.buffer().data(), &value, sizeof value);
    return tensor.item();
  };
  EXPECT_EQ(item_of(narrow_bfloat16(-2.5f), DType::kBFloat16), -2.5f);
  EXPECT_EQ(item_of(narrow_float16(0.125f), DType::kFloat16), 0.125f);
  EXPECT_EQ(item_of(0.1, DType::kFloat64), 0.1f);
  EXPECT_TRUE(std::isnan(item_of(narrow_bfloat16(std::nanf("")), DType::kBFloat16)));
  EXPECT_THROW(item_of(std::int64_t{3}, DType::kInt64), InvalidArgument) << "a float cannot hold every whole number";
}

TEST(Tensor, MemoryComesBackFromTheCache) {
  { const Tensor warm = Tensor::empty({1000}); }
  const auto before = cpu_device().allocator_stats();
  for (int i = 0; i < 10; ++i) const Tensor again = Tensor::empty({1000});
  const auto after = cpu_device().allocator_stats();
  EXPECT_EQ(after.system_allocations, before.system_allocations);
  EXPECT_EQ(after.cache_hits, before.cache_hits + 10);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
}

// Published results of Philox4x32-10 from the Random123 distribution (kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsAreReproducibleAndDistinct) {
  Philox a(1, 2), again(1, 2), other_stream(1, 3), other_seed(2, 2);
  bool stream_differs = false, seed_differs = false;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t value = a.next();
    EXPECT_EQ(value, again.next());
    stream_differs |= value != other_stream.next();
    seed_differs |= value != other_seed.next();
  }
  EXPECT_TRUE(stream_differs && seed_differs);
}

TEST(Philox, NoTwoPurposesShareAStream) {
  constexpr std::uint64_t kLast = (std::uint64_t{1} << 60) - 1;
  std::set<std::uint64_t> streams;
  int made = 0;
  for (const RandomUse use : {RandomUse::kProgram, RandomUse::kWeights, RandomUse::kOrder, RandomUse::kAugmentation,
                              RandomUse::kGeneratedSet})
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7} << 32, std::uint64_t{1} << 40, kLast}) {
      streams.insert(random_stream(use, number));
      ++made;
    }
  EXPECT_EQ(streams.size(), static_cast<std::size_t>(made));
  EXPECT_EQ(random_stream(RandomUse::kProgram, 5), 5u) << "streams that programs number themselves";
  EXPECT_THROW(random_stream(RandomUse::kWeights, kLast + 1), InvalidArgument) << "would be another purpose's";
}

TEST(Random, WeightsComeFromStreamsOfTheirOwn) {
  manual_seed(3);
  for (std::uint64_t tensor = 0; tensor < 3; ++tensor) {
    const Tensor values = Tensor::empty({20});
    fill_uniform(values, 0, 1);
    Philox expected(3, random_stream(RandomUse::kWeights, tensor));
    for (const float value : values.span<float>()) EXPECT_EQ(value, expected.uniform());
  }
}

TEST(Philox, BelowIsUniformWithinItsBound) {
  Philox random(3, 0);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts.at(random.below(7));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);  // five standard deviations
  EXPECT_THROW(random.below(0), InvalidArgument);
}

TEST(Random, FillsHaveTheirMoments) {
  manual_seed(7);
  const Tensor normal = Tensor::empty({200'000}), truncated = Tensor::empty({100'000}),
               uniform = Tensor::empty({100'000});
  fill_normal(normal, 2, 3);
  fill_truncated_normal(truncated, 0, 1);
  fill_uniform(uniform, -1, 3);
  double mean = 0, square = 0;
  for (const float value : normal.span<float>()) mean += value, square += double{value} * value;
  mean /= 200'000;
  EXPECT_NEAR(mean, 2, 0.05);
  EXPECT_NEAR(std::sqrt(square / 200'000 - mean * mean), 3, 0.05);
  for (const float value : truncated.span<float>()) EXPECT_LE(std::abs(value), 2.f);
  for (const float value : uniform.span<float>()) EXPECT_TRUE(value >= -1 && value < 3);
}

TEST(Random, WeightsDependOnSeedAndOrderAlone) {
  const auto draw = [](std::uint64_t seed) {
    manual_seed(seed);
    const Tensor first = Tensor::empty({5}), second = Tensor::empty({5});
    fill_normal(first, 0, 1);
    fill_normal(second, 0, 1);
    return std::pair{first.span<float>()[4], second.span<float>()[4]};
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  EXPECT_NE(draw(1).first, draw(1).second);
  manual_seed(9);
  const RandomState state = random_state();
  const Tensor a = Tensor::empty({3}), b = Tensor::empty({3});
  fill_uniform(a, 0, 1);
  set_random_state(state);
  fill_uniform(b, 0, 1);
  EXPECT_EQ(a.span<float>()[2], b.span<float>()[2]);
}

}  // namespace
}  // namespace lockstep
