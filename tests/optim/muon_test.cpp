// Muon, compared with its formula in double.
#include "lockstep/optim/muon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/autocast.h"
#include "tests/optim/trainee.h"
#include "tests/support/message_of.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;
using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < b.size(); ++k)
      for (std::size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix b(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[0].size(); ++j) b[j][i] = a[i][j];
  return b;
}

// x <- p x + q y.
void combine(Matrix& x, double p, const Matrix& y, double q) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < x[0].size(); ++j) x[i][j] = p * x[i][j] + q * y[i][j];
}

Matrix orthogonalised(Matrix x, int iterations) {
  double squares = 0;
  for (const auto& row : x)
    for (const double value : row) squares += value * value;
  combine(x, 1 / std::max(std::sqrt(squares), 1e-7), x, 0);
  for (int i = 0; i < iterations; ++i) {  // without the transposition, which changes no value
    const Matrix a = product(x, transposed(x));
    Matrix b = product(a, a);
    combine(b, 2.0315, a, -4.7750);
    combine(x, 3.4445, product(b, x), 1);
  }
  return x;
}

Matrix matrix_of(const std::vector<float>& values, std::size_t columns) {
  Matrix x(values.size() / columns, std::vector<double>(columns));
  for (std::size_t i = 0; i < values.size(); ++i) x[i / columns][i % columns] = values[i];
  return x;
}

TEST(Muon, FollowsItsFormula) {
  for (const Shape& shape : {Shape({6, 4}), Shape({3, 7}), Shape({4, 2, 2, 3}), Shape({1, 5})})
    for (const bool nesterov : {true, false}) {
      const auto count = static_cast<std::size_t>(shape.count()), rows = static_cast<std::size_t>(shape[0]),
                 columns = count / rows;
      const Tensor weight = Tensor::from<float>(weights_at_first(count), shape);
      require_grad(weight);
      bind_grad(weight, cpu_device().allocate(weight.bytes()));
      const MuonOptions options{.lr = 0.05f,
                                .momentum = 0.9f,
                                .weight_decay = 0.2f,
                                .nesterov = nesterov,
                                .factor = nesterov ? MuonFactor::kOriginal : MuonFactor::kMatchRmsAdamW};
      Muon muon({{"w", weight}}, options);
      Matrix expected = matrix_of(weights_at_first(count), columns), buffer(rows, std::vector<double>(columns, 0));
      const double r = static_cast<double>(rows), c = static_cast<double>(columns);
      const double factor = nesterov ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
      for (int step = 1; step <= 5; ++step) {
        const std::vector<float> gradient = gradient_of_step(step, count);
        give_gradient(weight, gradient);
        muon.step();
        const Matrix g = matrix_of(gradient, columns);
        combine(buffer, 0.9, g, 0.1);
        Matrix update = buffer;
        if (nesterov) combine(update, 0.9, g, 0.1);
        combine(expected, 1 - 0.05 * 0.2, orthogonalised(update, 5), -0.05 * factor);
      }
      const std::vector<float> weights = values_of(weight);
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_NEAR(weights[i], expected[i / columns][i % columns], 2e-5) << shape.text();
      EXPECT_EQ(muon.state().size(), 1U);
      EXPECT_EQ(muon.state()[0].name, "w.momentum_buffer");
    }
}

TEST(Muon, AZeroGradientOnlyDecays) {
  const Tensor weight = Tensor::full({2, 2}, 1);
  require_grad(weight);
  bind_grad(weight, cpu_device().allocate(weight.bytes()));
  Muon muon({{"w", weight}}, {.lr = 0.5f, .weight_decay = 0.5f});
  give_gradient(weight, {0, 0, 0, 0});
  muon.step();
  EXPECT_EQ(values_of(weight), std::vector<float>(4, 0.75f));
}

TEST(Muon, ComputesInFloat32UnderAnAutoCast) {
  std::vector<std::vector<float>> weights;
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const AutoCast cast(type);
    const Tensor weight = Tensor::from<float>(weights_at_first(24), {6, 4});
    require_grad(weight);
    bind_grad(weight, cpu_device().allocate(weight.bytes()));
    Muon muon({{"w", weight}}, {.lr = 0.05f});
    for (int step = 1; step <= 3; ++step) {
      give_gradient(weight, gradient_of_step(step, 24));
      muon.step();
    }
    weights.push_back(values_of(weight));
  }
  EXPECT_EQ(weights[1], weights[0]);
  EXPECT_EQ(weights[2], weights[0]);
}

TEST(Muon, RefusesWhatIsNoMatrix) {
  const Tensor bias = parameter_of({1, 2, 3});
  EXPECT_THAT(
      message_of([&] {
        Muon({{"fc.bias", bias}});
      }),
      HasSubstr(
          "Muon: parameter 'fc.bias' (3) has fewer than 2 dimensions: give it to another optimizer, such as AdamW"));
  const Tensor weight = Tensor::full({2, 2}, 1);
  require_grad(weight);
  Muon muon({{"w", weight}});
  EXPECT_THAT(message_of([&] { muon.add_group({.parameters = {{"fc.bias", bias}}}); }), HasSubstr("'fc.bias'"));
  EXPECT_THAT(message_of([&] { Muon({{"w", weight}}, {.momentum = 1}); }), HasSubstr("momentum 1"));
  EXPECT_THAT(message_of([&] { Muon({{"w", weight}}, {.eps = 0}); }), HasSubstr("eps 0, expected a number above 0"));
  EXPECT_THAT(message_of([&] { Muon({{"w", weight}}, {.iterations = 0}); }), HasSubstr("iterations 0"));
}

}  // namespace
}  // namespace lockstep::optim
