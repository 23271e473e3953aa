// Every operator on 16-bit floats on the device under test, against the plain one: 32-bit operators between widening and rounding. What a
// device rounds once may end at the neighbouring number, what it adds in two steps at the next: that is the bound, beside the 2e-5 of sums
// of products.
#include "tests/kernels/cases.h"
#include "tests/kernels/twin.h"

namespace lockstep::testing {
namespace {

static_assert(sizeof(MixedKernelTable) == 17 * sizeof(void*));

constexpr std::array kHalves = {DType::kFloat16, DType::kBFloat16};

// The distance of two neighbours, relative to them.
constexpr float step_of(DType type) { return type == DType::kFloat16 ? 0x1p-10F : 0x1p-7F; }

// Results of 16 bits, written or added to values in -1 .. 1.
Bound rounded(DType type, bool accumulate = false) {
  return {.products = 2e-5F, .value = step_of(type), .absolute = 0x1p-23F + (accumulate ? step_of(type) : 0)};
}

class MixedTwin : public TwinTest {};
LOCKSTEP_TWINS(MixedTwin);

TEST_P(MixedTwin, ConvertsToTheBit) {
  Floats special = {0,
                    -0.0F,
                    1,
                    65504,
                    65519,
                    65520,
                    1e-8F,
                    6e-8F,
                    -6.1e-5F,
                    1e30F,
                    3.4e38F,
                    1.00390625F,
                    1.01171875F,
                    std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()};
  for (const Index count : kCounts)
    for (const DType from : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      for (const DType to : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
        for (const bool accumulate : {false, true})
          compare(fmt::format("{} elements from {} to {}", count, name_of(from), name_of(to)), {kExact}, [&](Bench& b) {
            Floats values = uniform(count, 1);
            if (values.size() > special.size()) std::copy(special.begin(), special.end(), values.begin());
            const void* const in = from == DType::kFloat32 ? b.in(values) : b.half_in(from, values);
            void* const out = to == DType::kFloat32 ? b.out(uniform(count, 2), Place::kOneElementOff) : b.half_out(to, uniform(count, 2));
            b.kernels.mixed.convert(from, in, to, out, count, accumulate, b.stream());
          });
}

TEST_P(MixedTwin, ElementwiseToTheBit) {
  for (const DType type : kHalves)
    for (const Index count : kCounts)
      for (const bool accumulate : {false, true})
        compare(fmt::format("{} elements of {}", count, name_of(type)), {kExact}, [&](Bench& b) {
          const MixedKernelTable& mixed = b.kernels.mixed;
          const void *x = b.half_in(type, uniform(count, 1)), *y = b.half_in(type, uniform(count, 2));
          mixed.add(type, x, y, b.half_out(type, uniform(count, 3)), count, b.stream());
          mixed.scale(type, x, 0.3F, b.half_out(type, uniform(count, 3)), count, accumulate, b.stream());
          mixed.relu(type, x, b.half_out(type, uniform(count, 3)), count, b.stream());
          mixed.relu_backward(type, x, b.half_out(type, uniform(count, 3)), count, b.stream());
        });
}

TEST_P(MixedTwin, Bias) {
  for (const DType type : kHalves)
    for (const Index rows : {0, 1, 3, 257, 1030})
      for (const Index channels : {1, 3, 64, 70})
        for (const bool accumulate : {false, true})
          compare(fmt::format("{} rows of {} {}", rows, channels, name_of(type)), {kExact, {.products = 2e-5F}}, [&](Bench& b) {
            b.kernels.mixed.bias(type, b.half_out(type, uniform(rows * channels, 1)), b.half_in(type, uniform(channels, 2)), rows, channels,
                                 b.stream());
            b.kernels.mixed.bias_backward(type, b.half_in(type, uniform(rows * channels, 3)),
                                          b.out(uniform(channels, 4), Place::kOneElementOff), rows, channels, accumulate, b.stream());
          });
}

// Convolutions and linear layers alike. Gradients of weights are float32, but a library may have rounded them to `type` on their way.
template <typename Shape, typename Forward, typename Data, typename Weights>
void products(Bench& b, DType type, const Shape& s, bool flag, Forward forward, Data backward_data, Weights backward_weights) {
  const MixedKernelTable& mixed = b.kernels.mixed;
  const void *x = b.half_in(type, uniform(x_count(s), 1)), *weight = b.half_in(type, uniform(weight_count(s), 2)),
             *bias = b.half_in(type, uniform(bias_count(s), 3)), *y_grad = b.half_in(type, uniform(y_count(s), 4));
  (mixed.*forward)(type, s, x, weight, flag ? bias : nullptr, flag, b.half_out(type, uniform(y_count(s), 5)), b.stream());
  (mixed.*backward_data)(type, s, y_grad, weight, b.half_out(type, uniform(x_count(s), 6)), flag, b.stream());
  float* const weight_grad = b.out(uniform(weight_count(s), 7), Place::kOneElementOff);  // before the bias's: bounds are in this order
  float* const bias_grad = b.out(uniform(bias_count(s), 8), Place::kOneElementOff);
  (mixed.*backward_weights)(type, s, x, y_grad, weight_grad, bias_grad, flag, !flag, b.stream());
}

// Without the fused form a library rounds before the bias is added, too.
std::vector<Bound> bounds_of_products(DType type, bool flag) {
  return {rounded(type, true), rounded(type, flag), rounded(type, flag), {.products = 2e-5F}};
}

TEST_P(MixedTwin, Conv2d) {
  for (const DType type : kHalves)
    for (const Conv2dShape& s : conv2d_shapes())
      for (const bool flag : {false, true})
        compare(fmt::format("{} {}", name_of(type), name_of(s)), bounds_of_products(type, flag), [&](Bench& b) {
          products(b, type, s, flag, &MixedKernelTable::conv2d, &MixedKernelTable::conv2d_backward_data,
                   &MixedKernelTable::conv2d_backward_weights);
        });
}

TEST_P(MixedTwin, Linear) {
  for (const DType type : kHalves)
    for (const LinearShape& s : linear_shapes())
      for (const bool flag : {false, true})
        compare(fmt::format("{} {}", name_of(type), name_of(s)), bounds_of_products(type, flag), [&](Bench& b) {
          products(b, type, s, flag, &MixedKernelTable::linear, &MixedKernelTable::linear_backward_data,
                   &MixedKernelTable::linear_backward_weights);
        });
}

// The first image or row is no number.
TEST_P(MixedTwin, FusedReLULetsNanThrough) {
  const auto broken = [](Index count, Index batch) {
    Floats values = uniform(count, 1);
    std::fill_n(values.begin(), count / batch, std::numeric_limits<float>::quiet_NaN());
    return values;
  };
  const Conv2dShape conv = conv2d_shapes()[1];
  const LinearShape linear{64, 64, 64};
  for (const DType type : kHalves)
    compare(std::string(name_of(type)), {rounded(type, true)}, [&](Bench& b) {
      b.kernels.mixed.conv2d(type, conv, b.half_in(type, broken(x_count(conv), conv.batch)),
                             b.half_in(type, uniform(weight_count(conv), 2)), nullptr, true, b.half_out(type, uniform(y_count(conv), 3)),
                             b.stream());
      b.kernels.mixed.linear(type, linear, b.half_in(type, broken(x_count(linear), linear.batch)),
                             b.half_in(type, uniform(weight_count(linear), 2)), b.half_in(type, uniform(bias_count(linear), 4)), true,
                             b.half_out(type, uniform(y_count(linear), 3)), b.stream());
    });
}

TEST_P(MixedTwin, MaxPool) {
  for (const DType type : kHalves)
    for (const Pool2dShape& s : pool2d_shapes())
      for (const bool accumulate : {false, true})
        compare(fmt::format("{} {}", name_of(type), name_of(s)), {kExact, kExact, rounded(type, accumulate)}, [&](Bench& b) {
          std::uint16_t* const argmax = b.plain_out(std::vector<std::uint16_t>(static_cast<std::size_t>(y_count(s)), 999));
          b.kernels.mixed.max_pool2d(type, s, b.half_in(type, whole_numbers(x_count(s), 1)), b.half_out(type, uniform(y_count(s), 2)),
                                     argmax, b.stream());
          b.kernels.mixed.max_pool2d_backward(type, s, b.half_in(type, uniform(y_count(s), 3)), argmax,
                                              b.half_out(type, uniform(x_count(s), 4)), accumulate, b.stream());
        });
}

TEST_P(MixedTwin, LocalResponseNorm) {
  for (const DType type : kHalves)
    for (const LrnParams& p : lrn_params()) {
      const Index count = p.rows * p.channels;
      const bool accumulate = p.rows % 2 == 1;
      // Backward reads a y that may be the neighbour of the plain kernel's.
      const Bound backward{.value = 2 * step_of(type), .largest = step_of(type), .absolute = accumulate ? step_of(type) : 0};
      compare(fmt::format("{} {}", name_of(type), name_of(p)), {rounded(type), {.largest = 5e-6F}, backward}, [&](Bench& b) {
        const void *x = b.half_in(type, uniform(count, 1)), *y_grad = b.half_in(type, uniform(count, 2));
        void* const y = b.half_out(type, Floats(static_cast<std::size_t>(count)));
        float* const scale = b.out(Floats(static_cast<std::size_t>(count)));
        b.kernels.mixed.lrn(type, p, x, y, scale, b.stream());
        b.kernels.mixed.lrn_backward(type, p, x, y, scale, y_grad, b.half_out(type, uniform(count, 3)), accumulate, b.stream());
      });
    }
}

TEST(MixedTypes, OthersAreRefused) {
  float values[4] = {};
  EXPECT_THROW(cpu_device().kernels().mixed.relu(DType::kFloat32, values, values, 4, cpu_device().default_stream()), InvalidArgument);
  EXPECT_THROW(
      cpu_device().kernels().mixed.convert(DType::kInt32, values, DType::kFloat16, values, 2, false, cpu_device().default_stream()),
      InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
