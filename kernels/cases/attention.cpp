#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct AttentionCase {
  Index batch, queries, keys, heads, width;
  bool causal, packed;

  AttentionParams params() const { return {0.6F, causal}; }
  std::string name() const {
    return fmt::format("{} x {} queries, {} keys, {} heads of {}{}{}", batch, queries, keys, heads, width,
                       causal ? ", causal" : "", packed ? ", packed" : "");
  }
};

// Odd sizes, larger than a tile of any device, and empty ones.
const std::vector<AttentionCase> kAttentions = {
    {1, 1, 1, 1, 1, false, false},    {2, 5, 5, 3, 4, true, false},     {2, 5, 5, 3, 4, true, true},
    {1, 3, 40, 2, 33, false, false},  {1, 35, 3, 1, 8, false, false},   {1, 70, 70, 2, 16, true, true},
    {1, 40, 40, 1, 128, false, true}, {1, 131, 131, 1, 5, true, false}, {1, 130, 140, 1, 3, false, false},
    {1, 197, 197, 1, 3, true, true},  {1, 7, 400, 1, 2, false, false},  {0, 4, 4, 2, 3, false, true},
    {2, 0, 0, 2, 3, true, false},     {2, 0, 5, 2, 3, false, false},    {2, 4, 5, 0, 3, false, false}};

struct AttentionViews {
  InputView q, k, v;
};

AttentionViews operands(Bench& b, const AttentionCase& c) {
  if (c.packed)
    return {b.in({c.batch, c.queries, 3, c.heads, c.width}, uniform(c.batch * c.queries * 3 * c.heads * c.width, 1)),
            {},
            {}};
  const Shape queries{c.batch, c.queries, c.heads, c.width}, keys{c.batch, c.keys, c.heads, c.width};
  return {b.in(queries, uniform(queries.count(), 1)), b.in(keys, uniform(keys.count(), 2)),
          b.in(keys, uniform(keys.count(), 3))};
}

struct AttentionResults {
  OutputView y, log_sums;
};

AttentionResults results(Bench& b, const AttentionCase& c) {
  const Shape shape{c.batch, c.queries, c.heads, c.width}, sums{c.batch, c.heads, c.queries};
  return {b.out(shape, uniform(shape.count(), 4)), b.floats_out(sums, uniform(sums.count(), 5))};
}

Work forward(const AttentionCase& c) {
  return [=](Bench& b) {
    const AttentionViews from = operands(b, c);
    const AttentionResults to = results(b, c);
    return [=, &b] { b.kernels.attention(c.params(), from.q, from.k, from.v, to.y, to.log_sums, b.stream()); };
  };
}

// Runs on a result and logarithms from a forward pass, because backward is only correct for those.
Work backward(const AttentionCase& c, bool accumulate) {
  return [=](Bench& b) {
    const AttentionViews from = operands(b, c);
    const AttentionResults of = results(b, c);
    b.kernels.attention(c.params(), from.q, from.k, from.v, of.y, of.log_sums, b.stream());
    const InputView y_grad = b.in(of.y.shape, uniform(of.y.count(), 6));
    const auto grad_of = [&](const InputView& view, unsigned seed) {
      return view ? b.out(view.shape, uniform(view.count(), seed), accumulate) : OutputView();
    };
    const OutputView q_grad = grad_of(from.q, 7), k_grad = grad_of(from.k, 8), v_grad = grad_of(from.v, 9);
    return [=, &b] {
      b.kernels.attention_backward(c.params(), from.q, from.k, from.v, of.y, of.log_sums, y_grad, q_grad, k_grad,
                                   v_grad, b.stream());
    };
  };
}

Bound attention_bound(const Cases& cases, bool accumulate) {
  if (!cases.is_half()) return {.value = 2e-5F, .largest = 1e-5F, .absolute = 1e-6F};
  const float step = step_of(cases.type);
  return {.value = 2 * step, .largest = step, .absolute = accumulate ? step : 1e-6F};
}

constexpr Bound kLogSums{.value = 1e-5F, .absolute = 1e-5F};

AttentionCase attention_layer() { return {8, 128, 128, 4, 64, true, true}; }
double attention_flops(const AttentionCase& c, double products) {
  return products * 2 * static_cast<double>(c.batch * c.heads * c.queries * c.keys * c.width) * (c.causal ? 0.5 : 1);
}

}  // namespace

void attention(Cases& cases) {
  for (const AttentionCase& c : kAttentions)
    cases.test(c.name(), {attention_bound(cases, false), kLogSums}, forward(c));
  cases.row({.name = "attention forward", .flops = attention_flops(attention_layer(), 2)}, forward(attention_layer()));
}

void attention_backward(Cases& cases) {
  for (const AttentionCase& c : kAttentions)
    for (const bool accumulate : {false, true}) {
      if (c.queries * c.keys > 1000 && accumulate != c.causal)
        continue;  // only one of both, because an emulated device needs seconds for each
      cases.test(fmt::format("{}, {}", c.name(), accumulate),
                 {attention_bound(cases, false), kLogSums, attention_bound(cases, accumulate)},
                 backward(c, accumulate));
    }
  cases.row({.name = "attention backward", .flops = attention_flops(attention_layer(), 5)},
            backward(attention_layer(), false));
}

}  // namespace lockstep::testing::cases
