// A user's own operator, x^3, written with the one header for that: its gradient is compared with central differences.
#include <lockstep/autograd/extend.h>

#include <cmath>
#include <cstdio>

namespace ls = lockstep;

class CubeNode : public ls::Node {
 public:
  using Node::Node;
  const char* name() const override { return "cube"; }
  void backward(const ls::Tensor& result_grad, std::span<const ls::GradTarget> targets) override {
    const ls::Tensor x_grad = ls::empty_like(result_grad);
    const auto x = saved(0).span<float>(), from = result_grad.span<float>(), to = x_grad.span<float>();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = 3 * x[i] * x[i] * from[i];
    targets[0].give(x_grad);
  }
};

ls::Tensor cube(const ls::Tensor& x) {
  ls::check_input("cube", "x", x);
  const ls::Tensor y = ls::empty_like(x);
  const auto from = x.span<float>(), to = y.span<float>();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] * from[i] * from[i];
  ls::record<CubeNode>(y, {x}, std::vector{x});
  return y;
}

int main() {
  const float at[] = {-1.5f, 0.25f, 2};
  ls::Tensor x = ls::Tensor::from<float>(at, {3});
  ls::require_grad(x);
  cube(x).backward({.gradient = ls::Tensor::full({3}, 1)});
  for (int i = 0; i < 3; ++i) {
    const auto value = [&](float step) { return cube(ls::Tensor::full({1}, at[i] + step)).item(); };
    const float expected = (value(0.01f) - value(-0.01f)) / 0.02f, given = ls::grad(x).span<float>()[i];
    if (std::abs(given - expected) > 0.01f)
      return std::printf("at %g: %g, by differences %g\n", at[i], given, expected), 1;
  }
  return 0;
}
