#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct GroupCase {
  Index samples, pixels, channels, groups;
  bool affine;

  Shape shape() const { return {samples, pixels, channels}; }
  Shape statistics() const { return {samples, groups}; }
  std::string name() const {
    return fmt::format("{} x {} pixels of {} channels in {} groups{}", samples, pixels, channels, groups,
                       affine ? "" : ", no weight");
  }
};

// A GPU processes four channels of the last two at a time: in the same group, and, where it sums columns, in two.
const std::vector<GroupCase> kGroups = {{1, 1, 2, 1, true},   {2, 5, 6, 3, true},   {3, 70, 12, 12, false},
                                        {2, 300, 4, 2, true}, {1, 9, 130, 5, true}, {2, 16, 64, 8, true},
                                        {0, 4, 6, 2, true},   {2, 0, 6, 3, true},   {2, 0, 6, 3, false},
                                        {2, 5, 0, 1, true},   {3, 29, 36, 3, true}, {3, 29, 36, 2, true}};

constexpr float kGroupEpsilon = 0.1F;

InputView parameter(Bench& b, const GroupCase& c, unsigned seed) {
  return c.affine ? b.floats_in({c.channels}, uniform(c.channels, seed)) : InputView();
}

Work group_forward(const GroupCase& c) {
  return [=](Bench& b) {
    const InputView x = b.in(c.shape(), uniform(c.shape().count(), 1)), weight = parameter(b, c, 2),
                    bias = parameter(b, c, 3);
    const OutputView y = b.out(c.shape(), uniform(c.shape().count(), 4));
    const OutputView mean = b.floats_out(c.statistics(), uniform(c.statistics().count(), 5));
    const OutputView rstd = b.floats_out(c.statistics(), uniform(c.statistics().count(), 6));
    return [=, &b] { b.kernels.group_norm(c.groups, x, weight, bias, kGroupEpsilon, y, mean, rstd, b.stream()); };
  };
}

Work group_backward(const GroupCase& c, bool accumulate) {
  return [=](Bench& b) {
    const InputView x = b.in(c.shape(), uniform(c.shape().count(), 1)), weight = parameter(b, c, 2),
                    mean = b.floats_in(c.statistics(), uniform(c.statistics().count(), 3)),
                    rstd = b.floats_in(c.statistics(), uniform(c.statistics().count(), 4)),
                    y_grad = b.in(c.shape(), uniform(c.shape().count(), 5));
    const OutputView x_grad = b.out(c.shape(), uniform(c.shape().count(), 6), accumulate);
    const OutputView weight_grad =
        b.floats_out({c.channels}, uniform(c.channels, 7), accumulate, Place::kOneElementOff);
    const OutputView bias_grad = b.floats_out({c.channels}, uniform(c.channels, 8), !accumulate, Place::kOneElementOff);
    return [=, &b] {
      b.kernels.group_norm_backward(c.groups, x, weight, mean, rstd, y_grad, x_grad,
                                    c.affine ? weight_grad : OutputView(), c.affine ? bias_grad : OutputView(),
                                    b.stream());
    };
  };
}

Bound group_bound(const Cases& cases, float absolute, bool accumulate) {
  const float step = cases.is_half() ? step_of(cases.type) : 0;
  return {.value = 1e-5F + step, .largest = 5e-6F, .absolute = absolute + (accumulate ? 2 * step : 0)};
}

constexpr Bound kGroupFloats{.value = 1e-5F, .largest = 1e-5F, .absolute = 1e-5F};

GroupCase image(const Cases& cases) { return {cases.sizes.elements / 16384, 256, 64, 8, true}; }

}  // namespace

void group_norm(Cases& cases) {
  for (const GroupCase& c : kGroups)
    cases.test(c.name(), {group_bound(cases, 1e-6F, false), kGroupFloats}, group_forward(c));
  cases.large_row("group norm", 2 * cases.element_bytes(), group_forward(image(cases)));
}

void group_norm_backward(Cases& cases) {
  for (const GroupCase& c : kGroups)
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", c.name(), accumulate), {group_bound(cases, 2e-5F, accumulate), kGroupFloats},
                 group_backward(c, accumulate));
  cases.large_row("group norm backward", 3 * cases.element_bytes(), group_backward(image(cases), false));
}

}  // namespace lockstep::testing::cases
