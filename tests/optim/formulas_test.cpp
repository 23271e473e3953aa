// Every optimizer over 100 steps: against PyTorch's algorithm (and Keras' Nadam), written here once more, in double,
// and against the weights that PyTorch and Keras themselves gave.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "lockstep/optim/adagrad.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
#include "tests/optim/recorded_optimizers.h"
#include "tests/optim/trainee.h"

namespace lockstep::optim {
namespace {

constexpr int kSteps = 100;
constexpr std::size_t kCount = 37;
// Of weights near 1: 100 updates that are each rounded to float, half a unit in the last place (6e-8) a step and some
// in the update itself.
constexpr double kBound = 1e-5;
// Relative. The decoupled decay's factor, 1 - lr * weight_decay, is rounded to float: half a unit in the last place a
// step, always the same way.
constexpr double kRecordedBound = 5e-6;

// One weight with its state, in double.
struct Scalar {
  double w = 0, first = 0, second = 0, third = 0;
};
// Applies the gradient g in step t = 1, 2, ...
using Formula = std::function<void(Scalar&, double g, int t)>;
using Make = std::function<std::unique_ptr<Optimizer>(std::vector<NamedTensor>)>;

struct Case {
  std::string name;
  Make make;
  Formula formula;
};

template <typename T, typename Options>
Make make(const Options& options) {
  return [options](std::vector<NamedTensor> parameters) { return std::make_unique<T>(std::move(parameters), options); };
}

Formula sgd(double lr, double momentum, bool nesterov, double decay) {
  return [=](Scalar& s, double g, int t) {
    g += decay * s.w;
    s.first = t == 1 ? g : momentum * s.first + g;  // PyTorch's buffer begins as the first gradient
    s.w -= lr * (momentum == 0 ? g : nesterov ? g + momentum * s.first : s.first);
  };
}

Formula adam(double lr, double beta1, double beta2, double eps, double decay, bool decoupled) {
  return [=](Scalar& s, double g, int t) {
    if (decoupled)
      s.w *= 1 - lr * decay;
    else
      g += decay * s.w;
    s.first = beta1 * s.first + (1 - beta1) * g;
    s.second = beta2 * s.second + (1 - beta2) * g * g;
    const double first = s.first / (1 - std::pow(beta1, t)), second = s.second / (1 - std::pow(beta2, t));
    s.w -= lr * first / (std::sqrt(second) + eps);
  };
}

double mu_product(double beta1, double psi, int last) {
  double product = 1;
  for (int i = 1; i <= last; ++i) product *= beta1 * (1 - 0.5 * std::pow(0.96, i * psi));
  return product;
}

Formula torch_nadam(double lr, double beta1, double beta2, double eps, double decay, double psi, bool decoupled) {
  return [=](Scalar& s, double g, int t) {
    if (decoupled)
      s.w *= 1 - lr * decay;
    else
      g += decay * s.w;
    const double mu = beta1 * (1 - 0.5 * std::pow(0.96, t * psi)),
                 next = beta1 * (1 - 0.5 * std::pow(0.96, (t + 1) * psi));
    s.first = beta1 * s.first + (1 - beta1) * g;
    s.second = beta2 * s.second + (1 - beta2) * g * g;
    const double average =
        next * s.first / (1 - mu_product(beta1, psi, t + 1)) + (1 - mu) * g / (1 - mu_product(beta1, psi, t));
    s.w -= lr * average / (std::sqrt(s.second / (1 - std::pow(beta2, t))) + eps);
  };
}

// keras.optimizers.Nadam: u_t = beta_1 * (1 - 0.5 * 0.96^t).
Formula keras_nadam(double lr) {
  return [=](Scalar& s, double g, int t) {
    const double beta1 = 0.9, beta2 = 0.999, eps = 1e-7;
    const double u = beta1 * (1 - 0.5 * std::pow(0.96, t)), u_next = beta1 * (1 - 0.5 * std::pow(0.96, t + 1));
    if (t == 1) s.third = 1;
    s.third *= u;
    s.first += (g - s.first) * (1 - beta1);
    s.second += (g * g - s.second) * (1 - beta2);
    const double m_hat = u_next * s.first / (1 - s.third * u_next) + (1 - u) * g / (1 - s.third);
    const double v_hat = s.second / (1 - std::pow(beta2, t));
    s.w -= m_hat * lr / (std::sqrt(v_hat) + eps);
  };
}

Formula rmsprop(double lr, double alpha, double eps, double momentum, bool centered, double decay) {
  return [=](Scalar& s, double g, int) {
    g += decay * s.w;
    s.first = alpha * s.first + (1 - alpha) * g * g;
    s.third = alpha * s.third + (1 - alpha) * g;
    const double change = g / (std::sqrt(centered ? s.first - s.third * s.third : s.first) + eps);
    s.second = momentum * s.second + change;
    s.w -= lr * (momentum > 0 ? s.second : change);
  };
}

Formula adagrad(double lr, double lr_decay, double initial, double eps, double decay) {
  return [=](Scalar& s, double g, int t) {
    if (t == 1) s.first = initial;
    g += decay * s.w;
    s.first += g * g;
    s.w -= lr / (1 + (t - 1) * lr_decay) * g / (std::sqrt(s.first) + eps);
  };
}

std::vector<Case> cases() {
  return {
      {"sgd", make<SGD>(SGDOptions{.lr = 1e-2F}), sgd(1e-2, 0, false, 0)},
      {"sgd_momentum_decay", make<SGD>(SGDOptions{.lr = 1e-3F, .momentum = 0.9F, .weight_decay = 0.01F}),
       sgd(1e-3, 0.9, false, 0.01)},
      {"sgd_nesterov", make<SGD>(SGDOptions{.lr = 1e-3F, .momentum = 0.9F, .nesterov = true}), sgd(1e-3, 0.9, true, 0)},
      {"adam", make<Adam>(AdamOptions{}), adam(1e-3, 0.9, 0.999, 1e-8, 0, false)},
      {"adam_l2", make<Adam>(AdamOptions{.lr = 1e-2F, .beta1 = 0.8, .weight_decay = 0.1F}),
       adam(1e-2, 0.8, 0.999, 1e-8, 0.1, false)},
      {"adamw", make<AdamW>(AdamWOptions{}), adam(1e-3, 0.9, 0.999, 1e-8, 1e-2, true)},
      {"adamw_large", make<AdamW>(AdamWOptions{.lr = 1e-2F, .beta2 = 0.95, .eps = 1e-4F, .weight_decay = 0.5F}),
       adam(1e-2, 0.9, 0.95, 1e-4, 0.5, true)},
      {"nadam", make<Nadam>(NadamOptions{}), torch_nadam(2e-3, 0.9, 0.999, 1e-8, 0, 4e-3, false)},
      {"nadam_l2", make<Nadam>(NadamOptions{.lr = 1e-2F, .weight_decay = 0.1F, .momentum_decay = 0.1}),
       torch_nadam(1e-2, 0.9, 0.999, 1e-8, 0.1, 0.1, false)},
      {"nadam_decoupled", make<Nadam>(NadamOptions{.weight_decay = 0.1F, .decoupled_weight_decay = true}),
       torch_nadam(2e-3, 0.9, 0.999, 1e-8, 0.1, 4e-3, true)},
      {"nadam_keras", make<Nadam>(NadamOptions::keras()), keras_nadam(1e-3)},
      {"rmsprop", make<RMSprop>(RMSpropOptions{.lr = 1e-3F}), rmsprop(1e-3, 0.99, 1e-8, 0, false, 0)},
      {"rmsprop_momentum", make<RMSprop>(RMSpropOptions{.lr = 1e-3F, .momentum = 0.9F, .weight_decay = 0.1F}),
       rmsprop(1e-3, 0.99, 1e-8, 0.9, false, 0.1)},
      {"rmsprop_centered", make<RMSprop>(RMSpropOptions{.lr = 1e-3F, .alpha = 0.9, .centered = true}),
       rmsprop(1e-3, 0.9, 1e-8, 0, true, 0)},
      {"rmsprop_centered_momentum",
       make<RMSprop>(RMSpropOptions{.lr = 1e-4F, .alpha = 0.9, .momentum = 0.9F, .centered = true}),
       rmsprop(1e-4, 0.9, 1e-8, 0.9, true, 0)},
      {"adagrad", make<Adagrad>(AdagradOptions{}), adagrad(1e-2, 0, 0, 1e-10, 0)},
      {"adagrad_all",
       make<Adagrad>(AdagradOptions{.lr = 0.1F, .lr_decay = 0.05F, .initial_accumulator = 0.1F, .weight_decay = 0.01F}),
       adagrad(0.1, 0.05, 0.1, 1e-10, 0.01)},
  };
}

class OverHundredSteps : public ::testing::TestWithParam<Case> {};

TEST_P(OverHundredSteps, StaysNearTheFormulaInDouble) {
  const Tensor weight = parameter_of(weights_at_first(kCount));
  const auto optimizer = GetParam().make({{"w", weight}});
  std::vector<Scalar> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) expected[i].w = weight.span<float>()[i];
  const std::vector<float> before = values_of(weight);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = gradient_of_step(step, kCount);
    give_gradient(weight, gradient);
    optimizer->step();
    for (std::size_t i = 0; i < kCount; ++i) GetParam().formula(expected[i], gradient[i], step);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(weight.span<float>()[i], expected[i].w, kBound * std::max(1.0, std::abs(expected[i].w)))
        << "element " << i;
    EXPECT_NE(weight.span<float>()[i], before[i]) << "element " << i << " was not trained";
  }
}

// As recorded_optimizers.py has them: exact in float and in double.
std::vector<float> recorded_first_weights(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(8 + i) / 4;
  return values;
}

std::vector<float> recorded_gradients(int step, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((13 * step + 29 * static_cast<int>(i)) % 64 - 24) / 64 /
                static_cast<float>(1 << (3 * (i % 4)));
  return values;
}

TEST_P(OverHundredSteps, StaysNearTheWeightsOfPyTorchOrKeras) {
  const auto recorded = kRecordedWeights.find(GetParam().name);
  ASSERT_NE(recorded, kRecordedWeights.end()) << "a case without a line of recorded_optimizers.py";
  const auto& expected = recorded->second;
  const Tensor weight = parameter_of(recorded_first_weights(expected.size()));
  const auto optimizer = GetParam().make({{"w", weight}});
  for (int step = 1; step <= kSteps; ++step) {
    give_gradient(weight, recorded_gradients(step, expected.size()));
    optimizer->step();
  }
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(std::abs(weight.span<float>()[i] - expected[i]), kRecordedBound * std::abs(expected[i]))
        << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OverHundredSteps, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lockstep::optim
