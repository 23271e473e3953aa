#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct AttentionCase {
  Index batch, queries, keys, heads, width;
  bool causal, packed;
  Place place = Place::kAligned;

  AttentionParams params() const { return {0.6F, causal}; }
  std::string name() const {
    return fmt::format("{} x {} queries, {} keys, {} heads of {}{}{}{}", batch, queries, keys, heads, width,
                       causal ? ", causal" : "", packed ? ", packed" : "",
                       place == Place::kAligned ? "" : ", unaligned");
  }
};

// Odd sizes, larger than a tile of any device, and empty ones; widths that a library takes, and others; heads and
// numbers of queries that the emulated cuDNN refuses.
const std::vector<AttentionCase> kAttentions = {{1, 1, 1, 1, 1, false, false},
                                                {2, 5, 5, 3, 4, true, false},
                                                {2, 5, 5, 3, 4, true, true},
                                                {1, 3, 40, 2, 33, false, false},
                                                {1, 35, 3, 1, 8, false, false},
                                                {1, 70, 70, 2, 16, true, true},
                                                {1, 40, 40, 1, 128, false, true},
                                                {1, 131, 131, 1, 5, true, false},
                                                {1, 130, 140, 1, 3, false, false},
                                                {1, 197, 197, 1, 3, true, true},
                                                {1, 7, 400, 1, 2, false, false},
                                                {0, 4, 4, 2, 3, false, true},
                                                {2, 0, 0, 2, 3, true, false},
                                                {2, 0, 5, 2, 3, false, false},
                                                {2, 4, 5, 0, 3, false, false},
                                                {2, 35, 35, 2, 8, true, false},
                                                {2, 9, 9, 2, 64, true, true},
                                                {2, 10, 33, 2, 72, false, false},
                                                {1, 1, 35, 2, 16, false, false},
                                                {1, 33, 33, 1, 130, true, true},
                                                {1, 35, 35, 1, 256, true, true},
                                                {2, 3, 34, 2, 200, false, false},
                                                {1, 6, 6, 5, 16, true, true},
                                                {1, 6, 7, 6, 8, false, false},
                                                {1, 5, 9, 2, 16, true, false},
                                                {1, 9, 5, 2, 16, true, false},
                                                {1, 6, 6, 2, 16, true, true, Place::kOneElementOff},
                                                {2, 5, 7, 3, 24, false, false, Place::kOneElementOff}};

struct AttentionViews {
  InputView q, k, v;
};

AttentionViews operands(Bench& b, const AttentionCase& c) {
  if (c.packed)
    return {b.in({c.batch, c.queries, 3, c.heads, c.width}, uniform(c.batch * c.queries * 3 * c.heads * c.width, 1),
                 c.place),
            {},
            {}};
  const Shape queries{c.batch, c.queries, c.heads, c.width}, keys{c.batch, c.keys, c.heads, c.width};
  return {b.in(queries, uniform(queries.count(), 1), c.place), b.in(keys, uniform(keys.count(), 2), c.place),
          b.in(keys, uniform(keys.count(), 3), c.place)};
}

struct AttentionResults {
  OutputView y, log_sums;
};

AttentionResults results(Bench& b, const AttentionCase& c) {
  const Shape shape{c.batch, c.queries, c.heads, c.width}, sums{c.batch, c.heads, c.queries};
  return {b.out(shape, uniform(shape.count(), 4), false, c.place),
          b.floats_out(sums, uniform(sums.count(), 5), false, c.place)};
}

Work forward(const AttentionCase& c) {
  return [=](Bench& b) {
    const AttentionViews from = operands(b, c);
    const AttentionResults to = results(b, c);
    return [=, &b] { b.kernels.attention(c.params(), from.q, from.k, from.v, to.y, to.log_sums, b.stream()); };
  };
}

struct Gradients {
  bool accumulate = false;
  Place place = Place::kAligned;
  bool q = true, k = true, v = true;  // wanted

  std::string name() const {
    return fmt::format("accumulate {}{}{}{}{}", accumulate, place == Place::kAligned ? "" : ", gradients unaligned",
                       q ? "" : ", without q's", k ? "" : ", without k's", v ? "" : ", without v's");
  }
};

// Runs on a result and logarithms from a forward pass, because backward is only correct for those.
Work backward(const AttentionCase& c, const Gradients& gradients) {
  return [=](Bench& b) {
    const AttentionViews from = operands(b, c);
    const AttentionResults of = results(b, c);
    b.kernels.attention(c.params(), from.q, from.k, from.v, of.y, of.log_sums, b.stream());
    const InputView y_grad = b.in(of.y.shape, uniform(of.y.count(), 6), c.place);
    const auto grad_of = [&](const InputView& view, bool is_wanted, unsigned seed) {
      return view && is_wanted ? b.out(view.shape, uniform(view.count(), seed), gradients.accumulate, gradients.place)
                               : OutputView();
    };
    const OutputView q_grad = grad_of(from.q, gradients.q, 7), k_grad = grad_of(from.k, gradients.k, 8),
                     v_grad = grad_of(from.v, gradients.v, 9);
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
  const auto test = [&](const AttentionCase& c, const Gradients& gradients) {
    cases.test(fmt::format("{}, {}", c.name(), gradients.name()),
               {attention_bound(cases, false), kLogSums, attention_bound(cases, gradients.accumulate)},
               backward(c, gradients));
  };
  for (const AttentionCase& c : kAttentions)
    for (const bool accumulate : {false, true}) {
      if (c.queries * c.keys > 1000 && accumulate != c.causal)
        continue;  // only one of both, because an emulated device needs seconds for each
      test(c, {.accumulate = accumulate});
    }
  const AttentionCase separate{2, 6, 9, 2, 16, false, false}, packed{2, 9, 9, 2, 16, true, true};
  for (const AttentionCase& c : {separate, packed})
    for (const bool accumulate : {false, true}) test(c, {.accumulate = accumulate, .place = Place::kOneElementOff});
  test(packed, {.q = false});
  for (const int wanted : {0, 1, 2, 3, 4, 5, 6})
    test(separate, {.q = (wanted & 1) != 0, .k = (wanted & 2) != 0, .v = (wanted & 4) != 0});
  cases.row({.name = "attention backward", .flops = attention_flops(attention_layer(), 5)},
            backward(attention_layer(), {}));
}

}  // namespace lockstep::testing::cases
