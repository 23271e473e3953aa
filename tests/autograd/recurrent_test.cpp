// Recurrent layers: compared with steps written as operators, finite differences, lengths, 16 bits, errors. The same
// numbers as PyTorch's are tested in tests/nn/torch_layers_test.cpp.
#include "lockstep/autograd/recurrent.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/nn/recurrent.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

RecurrentWeights random_weights(std::int64_t gates, std::int64_t in, std::int64_t width) {
  return {random_leaf({gates * width, in}), random_leaf({gates * width, width}), random_leaf({gates * width}),
          random_leaf({gates * width})};
}
std::vector<Tensor> leaves_of(const RecurrentWeights& w) { return {w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh}; }

Tensor step_of_x(const Tensor& x, std::int64_t step) { return squeeze(slice(x, 0, {step, step + 1}), 0); }
Tensor part(const Tensor& gates, std::int64_t which, std::int64_t width) {
  return slice(gates, 1, {which * width, (which + 1) * width});
}

// One row of h or c: the new value where the sample has not ended.
Tensor kept(const Tensor& before, const Tensor& after, const std::vector<std::int64_t>& lengths, std::int64_t step) {
  if (lengths.empty()) return after;
  std::vector<std::uint8_t> active;
  for (const std::int64_t length : lengths) active.push_back(step < length);
  const auto rows = static_cast<std::int64_t>(active.size());
  return where(Tensor::from(std::span<const std::uint8_t>(active), {rows, 1}), after, before);
}

LstmResult composed_lstm(const Tensor& x, const RecurrentWeights& w, const RecurrentOptions& options) {
  const std::int64_t steps = x.shape()[0], samples = x.shape()[1], width = w.weight_hh.shape()[1];
  Tensor h = options.h.defined() ? options.h : Tensor::zeros({samples, width}),
         c = options.c.defined() ? options.c : Tensor::zeros({samples, width});
  std::vector<Tensor> outputs(static_cast<std::size_t>(steps));
  for (std::int64_t nth = 0; nth < steps; ++nth) {
    const std::int64_t step = options.reversed ? steps - 1 - nth : nth;
    const Tensor gates = linear(step_of_x(x, step), w.weight_ih, w.bias_ih) + linear(h, w.weight_hh, w.bias_hh);
    const Tensor next_c =
        sigmoid(part(gates, 1, width)) * c + sigmoid(part(gates, 0, width)) * tanh(part(gates, 2, width));
    const Tensor next_h = sigmoid(part(gates, 3, width)) * tanh(next_c);
    h = kept(h, next_h, options.lengths.values(), step), c = kept(c, next_c, options.lengths.values(), step);
    outputs[static_cast<std::size_t>(step)] = kept(Tensor::zeros({1}), h, options.lengths.values(), step);
  }
  return {stack(outputs), h, c};
}

GruResult composed_gru(const Tensor& x, const RecurrentWeights& w, const RecurrentOptions& options) {
  const std::int64_t steps = x.shape()[0], samples = x.shape()[1], width = w.weight_hh.shape()[1];
  Tensor h = options.h.defined() ? options.h : Tensor::zeros({samples, width});
  std::vector<Tensor> outputs(static_cast<std::size_t>(steps));
  for (std::int64_t nth = 0; nth < steps; ++nth) {
    const std::int64_t step = options.reversed ? steps - 1 - nth : nth;
    const Tensor of_x = linear(step_of_x(x, step), w.weight_ih, w.bias_ih), of_h = linear(h, w.weight_hh, w.bias_hh);
    const Tensor r = sigmoid(part(of_x, 0, width) + part(of_h, 0, width)),
                 z = sigmoid(part(of_x, 1, width) + part(of_h, 1, width)),
                 n = tanh(part(of_x, 2, width) + r * part(of_h, 2, width));
    h = kept(h, n + z * (h - n), options.lengths.values(), step);
    outputs[static_cast<std::size_t>(step)] = kept(Tensor::zeros({1}), h, options.lengths.values(), step);
  }
  return {stack(outputs), h};
}

void expect_near(const Tensor& found, const Tensor& expected, double tolerance = 1e-5) {
  ASSERT_EQ(found.shape(), expected.shape());
  for (std::int64_t i = 0; i < found.count(); ++i)
    EXPECT_NEAR(found.data<float>()[i], expected.data<float>()[i], tolerance) << "element " << i;
}

struct Form {
  bool reversed, has_state;
  std::vector<std::int64_t> lengths;
};
const std::vector<Form> kForms = {{false, false, {}},       {true, false, {}},       {false, true, {}},
                                  {false, true, {4, 0, 2}}, {true, true, {4, 0, 2}}, {true, false, {1, 4, 3}},
                                  {false, false, {1, 4, 3}}};

class Recurrent : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    manual_seed(3);
    x_ = random_leaf({4, 3, 5});
    options_.reversed = GetParam().reversed;
    options_.lengths = GetParam().lengths;
    if (GetParam().has_state) options_.h = random_leaf({3, 6});
  }
  std::vector<Tensor> leaves(const RecurrentWeights& weights) const {
    std::vector<Tensor> all = leaves_of(weights);
    all.push_back(x_);
    for (const Tensor& each : {options_.h, options_.c})
      if (each.defined()) all.push_back(each);
    return all;
  }
  Tensor x_;
  RecurrentOptions options_;
};
INSTANTIATE_TEST_SUITE_P(Forms, Recurrent, ::testing::ValuesIn(kForms));

// The gradients of all leaves under `function`.
std::vector<Tensor> gradients_of(const std::vector<Tensor>& leaves, const std::function<Tensor()>& function) {
  for (const Tensor& leaf : leaves) clear_grad(leaf);
  function().backward();
  std::vector<Tensor> all;
  for (const Tensor& leaf : leaves) all.push_back(grad(leaf).clone());
  return all;
}

TEST_P(Recurrent, LstmIsItsSteps) {
  const RecurrentWeights weights = random_weights(4, 5, 6);
  if (GetParam().has_state) options_.c = random_leaf({3, 6});
  const LstmResult found = lstm_layer(x_, weights, options_), expected = composed_lstm(x_, weights, options_);
  expect_near(found.output, expected.output);
  expect_near(found.h, expected.h);
  expect_near(found.c, expected.c);
  const auto loss = [&](const LstmResult& y) { return weigh(y.output) + weigh(y.h * y.h) + weigh(y.c * y.c); };
  const auto own = gradients_of(leaves(weights), [&] { return loss(lstm_layer(x_, weights, options_)); });
  const auto theirs = gradients_of(leaves(weights), [&] { return loss(composed_lstm(x_, weights, options_)); });
  for (std::size_t i = 0; i < own.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(own[i], theirs[i], 3e-5);
  }
}

TEST_P(Recurrent, GruIsItsSteps) {
  const RecurrentWeights weights = random_weights(3, 5, 6);
  const GruResult found = gru_layer(x_, weights, options_), expected = composed_gru(x_, weights, options_);
  expect_near(found.output, expected.output);
  expect_near(found.h, expected.h);
  const auto loss = [&](const GruResult& y) { return weigh(y.output) + weigh(y.h * y.h); };
  const auto own = gradients_of(leaves(weights), [&] { return loss(gru_layer(x_, weights, options_)); });
  const auto theirs = gradients_of(leaves(weights), [&] { return loss(composed_gru(x_, weights, options_)); });
  for (std::size_t i = 0; i < own.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(own[i], theirs[i], 3e-5);
  }
}

// Whatever a pipeline left behind the samples' ends.
TEST_P(Recurrent, PaddingOfNanAndInfinityChangesNothing) {
  const std::vector<std::int64_t> lengths = options_.lengths.values();
  if (lengths.empty()) GTEST_SKIP() << "has no padding";
  const RecurrentWeights lstm = random_weights(4, 5, 6), gru = random_weights(3, 5, 6);
  const auto all = [&] {
    const LstmResult y = lstm_layer(x_, lstm, options_);
    const GruResult z = gru_layer(x_, gru, options_);
    return weigh(y.output) + weigh(y.h) + weigh(y.c) + weigh(z.output) + weigh(z.h);
  };
  std::vector<Tensor> every = leaves(lstm);
  for (const Tensor& leaf : leaves_of(gru)) every.push_back(leaf);
  const float clean = all().item();
  const auto expected = gradients_of(every, all);
  const auto values = x_.span<float>();
  for (std::size_t step = 0; step < 4; ++step)
    for (std::size_t sample = 0; sample < 3; ++sample)
      if (static_cast<std::int64_t>(step) >= lengths[sample])
        for (std::size_t i = 0; i < 5; ++i)
          values[(step * 3 + sample) * 5 + i] = i % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
  EXPECT_EQ(all().item(), clean);
  const auto found = gradients_of(every, all);
  for (std::size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(found[i], expected[i], 0);
  }
}

TEST_P(Recurrent, AgreesWithFiniteDifferences) {
  const RecurrentWeights lstm = random_weights(4, 5, 6), gru = random_weights(3, 5, 6);
  check_gradients(leaves(gru), [&] {
    const GruResult y = gru_layer(x_, gru, options_);
    return weigh(y.output) + weigh(y.h);
  });
  if (GetParam().has_state) options_.c = random_leaf({3, 6});
  check_gradients(leaves(lstm), [&] {
    const LstmResult y = lstm_layer(x_, lstm, options_);
    return weigh(y.output) + weigh(y.h) + weigh(y.c);
  });
}

TEST(RecurrentLayer, RunsWithoutBiasesAndForNoSamples) {
  manual_seed(4);
  RecurrentWeights weights = random_weights(4, 5, 6);
  weights.bias_ih = weights.bias_hh = Tensor();
  const Tensor x = random_leaf({4, 3, 5});
  check_gradients({x, weights.weight_ih, weights.weight_hh}, [&] { return weigh(lstm_layer(x, weights).output); });
  const Tensor none = Tensor::zeros({4, 0, 5});
  EXPECT_EQ(lstm_layer(none, weights).output.shape(), (Shape{4, 0, 6}));
  EXPECT_EQ(lstm_layer(none, weights).c.shape(), (Shape{0, 6}));
}

TEST(RecurrentLayer, ComputesIn16BitsUnderAutoCast) {
  manual_seed(5);
  const RecurrentWeights lstm = random_weights(4, 8, 16), gru = random_weights(3, 8, 16);
  const Tensor x = random_leaf({6, 3, 8});
  const Tensor wide_lstm = lstm_layer(x, lstm).output, wide_gru = gru_layer(x, gru).output;
  const AutoCast half(DType::kBFloat16);
  const LstmResult y = lstm_layer(x, lstm);
  EXPECT_EQ(y.output.dtype(), DType::kBFloat16);
  expect_near(cast(y.output, DType::kFloat32), wide_lstm, 0.1);
  expect_near(cast(gru_layer(x, gru).output, DType::kFloat32), wide_gru, 0.1);
  const Tensor loss = sum(cast(y.output, DType::kFloat32));
  loss.backward();
  EXPECT_EQ(grad(lstm.weight_hh).dtype(), DType::kFloat32);
}

TEST(RecurrentLayer, AddsUpOverTwoUses) {
  manual_seed(6);
  const RecurrentWeights weights = random_weights(3, 6, 6);
  const Tensor x = random_leaf({3, 2, 6});
  check_gradients({x, weights.weight_ih, weights.weight_hh, weights.bias_hh},
                  [&] { return weigh(gru_layer(gru_layer(x, weights).output, weights).output); });
}

TEST(RecurrentLayer, ASecondPassOverTheTapeAddsTheSame) {
  manual_seed(7);
  const RecurrentWeights lstm = random_weights(4, 5, 6), gru = random_weights(3, 6, 6);
  const Tensor x = random_leaf({4, 3, 5});
  const RecurrentOptions options{.lengths = std::vector<std::int64_t>{4, 1, 3}};
  const Tensor loss = weigh(gru_layer(lstm_layer(x, lstm, options).output, gru, options).output);
  loss.backward({.retain_graph = true});
  const Tensor once = grad(x).clone(), weight_once = grad(lstm.weight_hh).clone();
  loss.backward();
  for (std::int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(grad(x).data<float>()[i], 2 * once.data<float>()[i]);
  for (std::int64_t i = 0; i < weight_once.count(); ++i)
    EXPECT_NEAR(grad(lstm.weight_hh).data<float>()[i], 2 * weight_once.data<float>()[i], 1e-5F);
}

TEST(RecurrentLayer, SaysWhatItRefuses) {
  const RecurrentWeights weights = random_weights(4, 5, 6);
  const Tensor x = Tensor::zeros({4, 3, 5});
  const auto message = [&](const Tensor& input, const RecurrentWeights& w, const RecurrentOptions& options) {
    return message_of([&] { lstm_layer(input, w, options); });
  };
  EXPECT_THAT(message(Tensor::zeros({4, 3}), weights, {}), HasSubstr("lstm_layer: x (T, N, I) must have 3 dimensions"));
  EXPECT_THAT(message(Tensor::zeros({0, 3, 5}), weights, {}), HasSubstr("lstm_layer: x (0, 3, 5) has no steps"));
  EXPECT_THAT(message(Tensor::zeros({4, 3, 7}), weights, {}),
              HasSubstr("lstm_layer: weight_ih must be (24, 7) for x (4, 3, 7), got (24, 5)"));
  EXPECT_THAT(message(x, weights, {.lengths = std::vector<std::int64_t>{1, 2}}),
              HasSubstr("lstm_layer: expected one length for each of 3 samples, got 2"));
  EXPECT_THAT(message(x, weights, {.lengths = std::vector<std::int64_t>{1, 5, 2}}),
              HasSubstr("lstm_layer: lengths[1] must be in [0, 4], the number of steps, got 5"));
  EXPECT_THAT(message(x, weights, {.lengths = std::vector<std::int64_t>{1, 2, -1}}), HasSubstr("got -1"));
  EXPECT_THAT(message(x, weights, {.h = Tensor::zeros({2, 6})}),
              HasSubstr("lstm_layer: the initial h must be (N, H) = (3, 6), got (2, 6)"));
  RecurrentWeights one_bias = weights;
  one_bias.bias_hh = Tensor();
  EXPECT_THAT(message(x, one_bias, {}), HasSubstr("only one of bias_ih and bias_hh is defined"));
  EXPECT_THAT(message_of([&] {
                gru_layer(x, random_weights(3, 5, 6), {.c = Tensor::zeros({3, 6})});
              }),
              HasSubstr("gru_layer: a GRU has no c"));
  EXPECT_THAT(message_of([&] { nn::LSTM(5, 0); }), HasSubstr("LSTM: every size must be positive, got 0"));
  EXPECT_THAT(message_of([&] { nn::GRU(5, 6, {.dropout = 1}); }), HasSubstr("GRU: dropout must be in [0, 1), got 1"));
  EXPECT_THAT(message_of([&] {
                nn::LSTM(5, 6).run(Tensor::zeros({3, 4, 2}));
              }),
              HasSubstr("LSTM: x (N, T, I) must have 5 features, got (3, 4, 2)"));
  EXPECT_THAT(message_of([&] {
                nn::LSTM(5, 6).run(Tensor::zeros({3, 4, 5}), {.h = Tensor::zeros({2, 3, 6})});
              }),
              HasSubstr("LSTM: the initial h must be (layers * directions, N, H) = (1, 3, 6), got (2, 3, 6)"));
}

}  // namespace
}  // namespace lockstep
