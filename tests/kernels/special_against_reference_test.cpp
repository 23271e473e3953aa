// Kernels that are in no list of operators: those of a layer above core; and types that no kernel takes.
#include <random>

#include "lockstep/data/augment_kernels.h"
#include "tests/kernels/reference_comparison.h"

namespace lockstep::testing {
namespace {

static_assert(sizeof(data::AugmentKernels) == sizeof(void*), "a new entry needs a comparison here");

class SpecialAgainstReference : public ReferenceComparison {};
LOCKSTEP_COMPARE_WITH_REFERENCE(SpecialAgainstReference);

TEST_P(SpecialAgainstReference, Augment) {
  const data::ImageShape shape{7, 32, 24};
  std::vector<std::uint8_t> planes(7 * 3 * 32 * 32);
  std::mt19937 random(1);
  for (std::size_t i = 0; i < planes.size(); ++i)
    planes[i] = i < 3072 ? 77 : static_cast<std::uint8_t>(random());  // one of a single colour
  const std::vector<data::Augmentation> each = {{0, 0, 0, 10, 0.5F}, {8, 0, 1, -63, 1.8F}, {0, 8, 0, 63, 0.2F},
                                                {8, 8, 1, 0, 1},     {4, 4, 0, 0, 1},      {3, 5, 1, 0, 1.3F},
                                                {7, 1, 0, -20.5F, 1}};
  compare("images", {{.value = 2e-6F, .absolute = 2e-6F}}, [&](Bench& b) {
    const std::uint8_t* const in = b.plain_in(planes);
    const data::Augmentation* const how = b.plain_in(each);
    float *const out = b.plain_out(Floats(7 * 24 * 24 * 3)), *const none = b.plain_out(Floats{1});
    // A crop of the image's size that extends over each of its edges, and one that lies completely outside.
    const data::Augmentation* const beyond =
        b.plain_in(std::vector<data::Augmentation>{{-4, -4, 0, 0, 1},
                                                   {4, 4, 1, 0, 1},
                                                   {-1, 3, 1, 20, 0.5F},
                                                   {2, -3, 0, -7, 1.8F},
                                                   {0, 0, 1, 0, 1},
                                                   {-4, 4, 0, 0, 1},
                                                   {32, -32, 0, 0, 1}});
    float* const whole = b.plain_out(Floats(7 * 32 * 32 * 3));
    float* const by_channel = b.plain_out(Floats(7 * 24 * 24 * 3));
    const data::ImageNormalization channels{
        data::ImageNormalization::Kind::kPerChannel, {0.49F, 0.48F, 0.45F}, {0.25F, 1, 0.3F}};
    return [=, &b] {
      const auto& kernels = b.kernels.families.get<data::AugmentKernels>();
      kernels.augment(shape, {}, in, how, out, b.stream());
      kernels.augment({7, 32, 32}, {}, in, beyond, whole, b.stream());
      kernels.augment({0, 32, 24}, {}, in, how, none, b.stream());
      kernels.augment(shape, channels, in, how, by_channel, b.stream());
    };
  });
}

TEST_P(SpecialAgainstReference, OtherTypesAreRefused) {
  GuardedBench b(device(), kernels(), DType::kFloat32, Values::kGiven);
  const OutputView y = b.out({4}, Floats(4));
  const OutputView integers(y.data, DType::kInt32, {4});
  EXPECT_THROW(b.kernels.relu(integers, integers, b.stream()), std::exception);
  EXPECT_THROW(b.kernels.convert(integers, y, b.stream()), std::exception);
  EXPECT_THROW(b.kernels.convert(y, integers, b.stream()), std::exception);
  EXPECT_THROW(b.kernels.fill(integers, 1, b.stream()), std::exception);
  b.results("refused");
}

}  // namespace
}  // namespace lockstep::testing
