// Every entry of the kernel table on the device under test, against the plain CPU kernel. Elementwise operators and the optimizer's step
// give its bits; sums of products stay within 2e-5 of the sum of their absolute values.
#include "lockstep/data/augment_kernels.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/twin.h"

namespace lockstep::testing {
namespace {

// A new entry needs a twin here, or in mixed_twins_test.cpp.
static_assert(sizeof(KernelTable) == (25 + 17) * sizeof(void*) + sizeof(KernelFamilies));
static_assert(sizeof(data::AugmentKernels) == sizeof(void*));

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Bound kSums{.products = 2e-5F};

class Twin : public TwinTest {};
LOCKSTEP_TWINS(Twin);

TEST_P(Twin, Elementwise) {
  for (const Index count : kCounts)
    for (const bool accumulate : {false, true})
      for (const Place place : {Place::kAligned, Place::kOneElementOff})
        compare(fmt::format("{} elements", count), {kExact}, [&](Bench& b) {
          const float *x = b.in(uniform(count, 1), place), *y = b.in(uniform(count, 2)), *factor = b.in({0.3F});
          b.kernels.fill(b.out(uniform(count, 3), place), -1.5F, count, b.stream());
          b.kernels.add(x, y, b.out(uniform(count, 3)), count, b.stream());
          b.kernels.accumulate(b.out(uniform(count, 3), place), x, count, b.stream());
          b.kernels.scale(x, 0.3F, b.out(uniform(count, 3)), count, accumulate, b.stream());
          b.kernels.scale_by(x, factor, b.out(uniform(count, 3), place), count, accumulate, b.stream());
          b.kernels.relu(x, b.out(uniform(count, 3), place), count, b.stream());
          b.kernels.relu_backward(x, b.out(uniform(count, 3), place), count, b.stream());
        });
}

TEST_P(Twin, ReLUWorksInPlaceAndLetsNanThrough) {
  compare("relu", {kExact}, [](Bench& b) {
    Floats values = uniform(41, 1);
    values[3] = kNan, values[40] = kNan, values[5] = -kInfinity;
    float* const x = b.out(values);
    b.kernels.relu(x, x, 41, b.stream());
  });
}

TEST_P(Twin, Bias) {
  for (const Index rows : {0, 1, 3, 4, 257, 1030, 40001})
    for (const Index channels : {1, 3, 5, 64, 70}) {
      if (rows > 10000 && channels > 5) continue;  // as many parts of the rows in a tenth of the time
      for (const bool accumulate : {false, true})
        compare(fmt::format("{} rows of {}", rows, channels), {kExact, kSums}, [&](Bench& b) {
          b.kernels.bias(b.out(uniform(rows * channels, 1)), b.in(uniform(channels, 2)), rows, channels, b.stream());
          b.kernels.bias_backward(b.in(uniform(rows * channels, 3)), b.out(uniform(channels, 4), Place::kOneElementOff), rows, channels,
                                  accumulate, b.stream());
        });
    }
}

TEST_P(Twin, Conv2d) {
  for (const Conv2dShape& s : conv2d_shapes())
    for (const bool flag : {false, true})
      compare(name_of(s), {kSums}, [&](Bench& b) {
        const float *x = b.in(uniform(x_count(s), 1)), *weight = b.in(uniform(weight_count(s), 2)), *bias = b.in(uniform(bias_count(s), 3)),
                    *y_grad = b.in(uniform(y_count(s), 4));
        b.kernels.conv2d(s, x, weight, flag ? bias : nullptr, flag, b.out(uniform(y_count(s), 5)), b.stream());
        b.kernels.conv2d(s, x, weight, flag ? nullptr : bias, flag, b.out(uniform(y_count(s), 5)), b.stream());
        b.kernels.conv2d_backward_data(s, y_grad, weight, b.out(uniform(x_count(s), 6)), flag, b.stream());
        b.kernels.conv2d_backward_weights(s, x, y_grad, b.out(uniform(weight_count(s), 7), flag ? Place::kOneElementOff : Place::kAligned),
                                          b.out(uniform(bias_count(s), 8)), flag, !flag, b.stream());
        b.kernels.conv2d_backward_weights(s, x, y_grad, b.out(uniform(weight_count(s), 9), Place::kOneElementOff), nullptr, !flag, false,
                                          b.stream());
      });
}

TEST_P(Twin, Linear) {
  for (const LinearShape& s : linear_shapes())
    for (const bool flag : {false, true})
      compare(name_of(s), {kSums}, [&](Bench& b) {
        const float *x = b.in(uniform(x_count(s), 1)), *weight = b.in(uniform(weight_count(s), 2)), *bias = b.in(uniform(bias_count(s), 3)),
                    *y_grad = b.in(uniform(y_count(s), 4)), *odd_bias = b.in(uniform(bias_count(s), 10), Place::kOneElementOff);
        b.kernels.linear(s, x, weight, flag ? bias : nullptr, flag, b.out(uniform(y_count(s), 5)), b.stream());
        b.kernels.linear(s, x, weight, odd_bias, flag, b.out(uniform(y_count(s), 11)), b.stream());
        b.kernels.linear(s, x, weight, flag ? nullptr : bias, flag, b.out(uniform(y_count(s), 5)), b.stream());
        b.kernels.linear_backward_data(s, y_grad, weight, b.out(uniform(x_count(s), 6)), flag, b.stream());
        b.kernels.linear_backward_weights(s, x, y_grad, b.out(uniform(weight_count(s), 7), flag ? Place::kOneElementOff : Place::kAligned),
                                          b.out(uniform(bias_count(s), 8), Place::kOneElementOff), flag, !flag, b.stream());
        b.kernels.linear_backward_weights(s, x, y_grad, b.out(uniform(weight_count(s), 9), Place::kOneElementOff), nullptr, !flag, false,
                                          b.stream());
      });
}

// The values of uniform(), but the first image's or row's are no numbers.
Floats broken_at_first(Index count, Index batch) {
  Floats values = uniform(count, 1);
  std::fill_n(values.begin(), count / batch, kNan);
  return values;
}

// Where every window holds a pixel: of padding alone, a library that computes tiles may make NaN and the plain kernel makes 0.
TEST_P(Twin, FusedReLULetsNanThrough) {
  for (const Conv2dShape& s : conv2d_shapes())
    if (s.batch > 0 && s.pad_top < s.kernel_height)
      for (const bool with_bias : {false, true})
        compare(name_of(s), {kSums}, [&](Bench& b) {
          const float* const bias = b.in(uniform(bias_count(s), 3));
          b.kernels.conv2d(s, b.in(broken_at_first(x_count(s), s.batch)), b.in(uniform(weight_count(s), 2)), with_bias ? bias : nullptr,
                           true, b.out(Floats(static_cast<std::size_t>(y_count(s)))), b.stream());
        });
  for (const LinearShape& s : linear_shapes())
    if (s.batch > 0)
      for (const bool with_bias : {false, true})
        compare(name_of(s), {kSums}, [&](Bench& b) {
          const float* const bias = b.in(uniform(bias_count(s), 3));
          b.kernels.linear(s, b.in(broken_at_first(x_count(s), s.batch)), b.in(uniform(weight_count(s), 2)), with_bias ? bias : nullptr,
                           true, b.out(Floats(static_cast<std::size_t>(y_count(s)))), b.stream());
        });
}

TEST_P(Twin, MaxPoolKeepsNan) {
  for (const Pool2dShape& s : pool2d_shapes())
    if (s.batch > 0)
      compare(name_of(s), {kExact}, [&](Bench& b) {
        Floats x = whole_numbers(x_count(s), 1);
        for (std::size_t i = 0; i < x.size(); i += 13) x[i] = kNan;
        std::uint16_t* const argmax = b.plain_out(std::vector<std::uint16_t>(static_cast<std::size_t>(y_count(s)), 999));
        b.kernels.max_pool2d(s, b.in(x), b.out(Floats(static_cast<std::size_t>(y_count(s)))), argmax, b.stream());
      });
}

// Sums of a window's gradients, in the order of the windows: exact but for an order of our own.
TEST_P(Twin, MaxPool) {
  for (const Pool2dShape& s : pool2d_shapes())
    for (const bool accumulate : {false, true})
      compare(name_of(s), {kExact, kExact, kSums}, [&](Bench& b) {
        std::uint16_t* const argmax = b.plain_out(std::vector<std::uint16_t>(static_cast<std::size_t>(y_count(s)), 999));
        b.kernels.max_pool2d(s, b.in(whole_numbers(x_count(s), 1)), b.out(Floats(static_cast<std::size_t>(y_count(s)))), argmax,
                             b.stream());
        b.kernels.max_pool2d_backward(s, b.in(uniform(y_count(s), 2)), argmax, b.out(uniform(x_count(s), 3)), accumulate, b.stream());
      });
}

TEST_P(Twin, LocalResponseNorm) {
  for (const LrnParams& p : lrn_params()) {
    const Index count = p.rows * p.channels;
    compare(name_of(p), {{.largest = 5e-6F}}, [&](Bench& b) {
      const float *x = b.in(uniform(count, 1)), *y_grad = b.in(uniform(count, 2));
      float *y = b.out(Floats(static_cast<std::size_t>(count))), *scale = b.out(Floats(static_cast<std::size_t>(count)));
      b.kernels.lrn(p, x, y, scale, b.stream());
      b.kernels.lrn_backward(p, x, y, scale, y_grad, b.out(uniform(count, 3)), p.rows % 2 == 1, b.stream());
    });
  }
}

std::vector<std::int64_t> labels_for(Index batch, Index classes) {
  std::vector<std::int64_t> labels(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i * 7) % classes;
  return labels;
}

TEST_P(Twin, CrossEntropy) {
  for (const Index batch : {1, 2, 13, 128, 1031})
    for (const Index classes : {1, 2, 10, 33, 1000}) {
      Floats logits = uniform(batch * classes, 1);
      for (float& logit : logits) logit *= 30;
      const bool accumulate = batch % 2 == 1;
      const Bound close{.largest = 1e-5F, .absolute = 1e-6F};
      compare(fmt::format("{} rows of {} classes", batch, classes), {close}, [&](Bench& b) {
        const std::int64_t* const labels = b.plain_in(labels_for(batch, classes));
        float *const loss = b.out({7}), *const probabilities = b.out(Floats(logits.size()));
        b.kernels.softmax_cross_entropy(b.in(logits), labels, batch, classes, loss, probabilities, b.stream());
        b.kernels.softmax_cross_entropy_backward(probabilities, labels, batch, classes, b.in({0.5F}), b.out(uniform(batch * classes, 2)),
                                                 accumulate, b.stream());
      });
    }
}

TEST_P(Twin, L2Loss) {
  for (const Index count : kCounts)
    compare(fmt::format("{} elements", count), {kSums},
            [&](Bench& b) { b.kernels.l2_loss(b.in(uniform(count, 1)), count, b.out({7}), b.stream()); });
}

// More tensors than one launch takes; some of them empty, some off their alignment, some without momentum.
std::vector<SgdTensor> parameters_on(Bench& b, bool with_momentum, bool bad) {
  std::vector<SgdTensor> tensors;
  for (unsigned i = 0; i < 230; ++i) {
    const Index count = i < kCounts.size() ? kCounts[i] : i % 53;
    const Place place = i % 3 == 1 ? Place::kOneElementOff : Place::kAligned;
    Floats grad = uniform(count, i + 2);
    if (bad && i == 201) grad.back() = i % 2 == 0 ? kNan : -kInfinity;
    float* const weight = b.out(uniform(count, i + 1), place);
    float* const momentum = b.out(uniform(count, i + 3), place);
    tensors.push_back({weight, b.in(std::move(grad), place), with_momentum ? momentum : nullptr, count});
  }
  return tensors;
}

TEST_P(Twin, SgdStep) {
  for (const bool with_momentum : {false, true})
    for (const bool nesterov : {false, true})
      for (const float decay : {0.0F, 5e-4F})
        compare(fmt::format("momentum {}, nesterov {}, decay {}", with_momentum, nesterov, decay), {kExact}, [&](Bench& b) {
          const std::vector<SgdTensor> tensors = parameters_on(b, with_momentum, false);
          const float* const lr = b.in({0.1F});
          for (int step = 0; step < 3; ++step) b.kernels.sgd_step(tensors, {lr, 0.9F, decay, nesterov}, b.stream());
        });
}

LossScaleState* loss_scale_on(Bench& b, float scale, float good_steps) {
  static_assert(sizeof(LossScaleState) == 4 * sizeof(float));
  return reinterpret_cast<LossScaleState*>(b.out({scale, 0, good_steps, 0}));
}

TEST_P(Twin, SgdStepUnderLossScaling) {
  for (const bool bad : {false, true})
    for (const float scale : {65536.0F, 3.0F})
      compare(fmt::format("scale {}, {}", scale, bad ? "a bad gradient" : "all finite"), {kExact}, [&](Bench& b) {
        const std::vector<SgdTensor> tensors = parameters_on(b, true, bad);
        LossScaleState* const state = loss_scale_on(b, scale, 1);
        const float* const lr = b.in({0.1F});
        for (int step = 0; step < 2; ++step) {
          b.kernels.find_bad_gradients(tensors, state, b.stream());
          b.kernels.sgd_step(tensors, {lr, 0.9F, 5e-4F, false, state}, b.stream());
          b.kernels.update_loss_scale({2, 0.5F, 3}, state, b.stream());
        }
      });
}

TEST_P(Twin, Augment) {
  const data::ImageShape shape{7, 32, 24};
  std::vector<std::uint8_t> planes(7 * 3 * 32 * 32);
  std::mt19937 random(1);
  for (std::size_t i = 0; i < planes.size(); ++i)
    planes[i] = i < 3072 ? 77 : static_cast<std::uint8_t>(random());  // one of a single colour
  const std::vector<data::Augmentation> each = {{0, 0, 0, 10, 0.5F}, {8, 0, 1, -63, 1.8F}, {0, 8, 0, 63, 0.2F}, {8, 8, 1, 0, 1},
                                                {4, 4, 0, 0, 1},     {3, 5, 1, 0, 1.3F},   {7, 1, 0, -20.5F, 1}};
  compare("images", {{.value = 2e-6F, .absolute = 2e-6F}}, [&](Bench& b) {
    const auto& kernels = b.kernels.families.get<data::AugmentKernels>();
    kernels.augment(shape, b.plain_in(planes), b.plain_in(each), b.out(Floats(7 * 24 * 24 * 3)), b.stream());
    kernels.augment({0, 32, 24}, b.plain_in(planes), b.plain_in(each), b.out({1}), b.stream());
  });
}

}  // namespace
}  // namespace lockstep::testing
