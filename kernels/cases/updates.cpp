// Fused updates of many tensors, float32: the same bits, except for the norm.
#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

// States are squares, because some formulas take their roots.
UpdateTensor tensor_on(Bench& b, Index count, unsigned seed, int states, Floats grad, Place place = Place::kAligned) {
  UpdateTensor tensor{b.out({count}, uniform(count, seed + 1), false, place).floats(),
                      b.in({count}, std::move(grad), place).floats(),
                      {},
                      count};
  for (int k = 0; k < states; ++k) {
    Floats values = uniform(count, seed + 3 + static_cast<unsigned>(k));
    for (float& value : values) value *= value;
    tensor.states[k] = b.out({count}, std::move(values), false, place).floats();
  }
  return tensor;
}

// More tensors than one launch can take; some of them are empty, some unaligned.
std::vector<UpdateTensor> odd_tensors(Bench& b, int states, bool bad = false) {
  std::vector<UpdateTensor> tensors;
  for (unsigned i = 0; i < 230; ++i) {
    const Index count = i < kCounts.size() ? kCounts[i] : i % 53;
    Floats grad = uniform(count, i + 2);
    if (bad && i == 201) grad.back() = i % 2 == 0 ? kNan : -kInfinity;
    tensors.push_back(
        tensor_on(b, count, i, states, std::move(grad), i % 3 == 1 ? Place::kOneElementOff : Place::kAligned));
  }
  return tensors;
}

std::vector<UpdateTensor> tensors_of(Bench& b, const std::vector<Index>& counts, int states) {
  std::vector<UpdateTensor> tensors;
  for (const Index count : counts) tensors.push_back(tensor_on(b, count, 1, states, uniform(count, 2)));
  return tensors;
}

// As when gradients are clipped: the same memory is read and changed.
std::vector<UpdateTensor> in_place(std::vector<UpdateTensor> tensors) {
  for (UpdateTensor& tensor : tensors) tensor.grad = tensor.weight;
  return tensors;
}

LossScaleState* loss_scale_on(Bench& b, float scale, float good_steps, bool bad = false) {
  static_assert(sizeof(LossScaleState) == 4 * sizeof(float));
  return reinterpret_cast<LossScaleState*>(b.out({4}, {scale, bad ? 1.0F : 0.0F, good_steps, 0}).floats());
}

LossScaleStep* loss_scale_step_on(Bench& b) {
  static_assert(sizeof(LossScaleStep) == 5 * sizeof(float));
  return reinterpret_cast<LossScaleStep*>(b.out({5}, {1, 1, 1, 1, 1}).floats());
}

UpdateClock* clock_on(Bench& b) { return reinterpret_cast<UpdateClock*>(b.plain_out<double>({0, 1, 1, 1})); }

GroupStep group_on(Bench& b, float decay, LossScaleState* scale = nullptr) {
  return {b.in({}, {0.1F}).floats(), decay, scale, clock_on(b)};
}

// One clock per tensor, but the last two share one; as if each had made as many steps as its tensor has elements.
void give_clocks(Bench& b, std::vector<UpdateTensor>& tensors, GroupStep& group) {
  std::vector<double> clocks;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto steps = static_cast<double>(tensors[i].count);
    clocks.insert(clocks.end(), {steps, 1 / (1 + steps), 1 / (1 + steps / 16), 1 / (1 + steps)});
    tensors[i].clock = static_cast<std::int64_t>(i + 1 < tensors.size() ? i : i - 1);
  }
  group.clock = reinterpret_cast<UpdateClock*>(b.plain_out<double>(clocks));
}

// Three steps on many tensors: plain, with weight decay, under loss scaling, and skipped by it. `params_of(group)`
// returns the parameters.
template <auto entry> void step_tests(Cases& cases, const std::string& what, int states, auto params_of) {
  struct Setting {
    const char* name;
    float decay;
    bool scaled, bad;
    bool own_clocks = false;  // one clock per tensor; some tensors miss some of the steps
  };
  for (const Setting with : {Setting{"plain", 0, false, false},
                             {"decay", 0.01F, false, false},
                             {"scaled", 0.01F, true, false},
                             {"skipped", 0.01F, true, true},
                             {"clocks of tensors", 0.01F, false, false, true},
                             {"clocks of tensors, skipped", 0.01F, true, true, true}})
    cases.test(fmt::format("{}, {}", what, with.name), {kExact}, [=](Bench& b) {
      std::vector<UpdateTensor> tensors = odd_tensors(b, states);
      GroupStep group = group_on(b, with.decay, with.scaled ? loss_scale_on(b, 3, 0, with.bad) : nullptr);
      if (with.own_clocks) give_clocks(b, tensors, group);
      const auto params = params_of(group);
      return [=, &b] {
        for (std::size_t step = 0; step < 3; ++step) {
          std::vector<UpdateTensor> now;
          for (std::size_t i = 0; i < tensors.size(); ++i)
            if (!with.own_clocks || i < 20 || i % 4 != step) now.push_back(tensors[i]);
          (b.kernels.*entry)(now, params, b.stream());
        }
      };
    });
}

template <auto entry> Work step_of(const std::vector<Index>& counts, int states, auto params_of) {
  return [=](Bench& b) {
    const std::vector<UpdateTensor> tensors = tensors_of(b, counts, states);
    const auto params = params_of(group_on(b, 0));
    return [=, &b] { (b.kernels.*entry)(tensors, params, b.stream()); };
  };
}

double bytes_of_step(const std::vector<Index>& counts, int states) {
  double elements = 0;
  for (const Index count : counts) elements += static_cast<double>(count);
  return elements * (12 + 8 * states);
}

// Adds tests and a row with large arrays.
template <auto entry> void step_cases(Cases& cases, const std::string& what, int states, auto params_of) {
  step_tests<entry>(cases, what, states, params_of);
  cases.large_row(what, 12 + 8 * states, step_of<entry>({cases.sizes.elements}, states, params_of));
}

// Steps under loss scaling, each by two optimizers: the result of each of the four operators is the next one's operand.
void under_loss_scaling(Cases& cases) {
  for (const bool bad : {false, true})
    for (const float scale : {65536.0F, 3.0F})
      cases.test(fmt::format("steps at scale {}, {}", scale, bad ? "a bad gradient" : "all finite"), {kExact},
                 [=](Bench& b) {
                   const std::vector<UpdateTensor> tensors = odd_tensors(b, 1, bad);
                   LossScaleState* const state = loss_scale_on(b, scale, 1);
                   LossScaleStep* const step = loss_scale_step_on(b);
                   const SgdParams params{group_on(b, 5e-4F, &step->begin), 0.9F, false};
                   return [=, &b] {
                     for (int optimizer = 0; optimizer < 4; ++optimizer) {
                       if (optimizer % 2 == 0) b.kernels.begin_loss_scale({2, 0.5F, 3}, state, step, b.stream());
                       b.kernels.find_bad_gradients(tensors, &step->begin, b.stream());
                       b.kernels.sgd_step(tensors, params, b.stream());
                       b.kernels.update_loss_scale({2, 0.5F, 3}, step, state, b.stream());
                     }
                   };
                 });
}

}  // namespace

void sgd_step(Cases& cases) {
  if (cases.is_half()) return;
  const auto plain = [](const GroupStep& group) { return SgdParams{group, 0, false}; };
  const auto momentum = [](const GroupStep& group) { return SgdParams{group, 0.9F, false}; };
  step_cases<&KernelTable::sgd_step>(cases, "sgd", 0, plain);
  step_cases<&KernelTable::sgd_step>(cases, "sgd momentum", 1, momentum);
  step_tests<&KernelTable::sgd_step>(cases, "sgd nesterov", 1, [](const GroupStep& group) {
    return SgdParams{group, 0.9F, true};
  });
  const std::vector<Index> tutorial = {4800, 64, 102400, 64, 884736, 384, 73728, 192, 1920, 10};
  const std::vector<Index> perceptron = {4194304, 2048, 4194304, 2048, 4194304, 2048, 4194304, 2048, 20480, 10};
  cases.row({.name = "sgd tutorial network", .bytes = bytes_of_step(tutorial, 0)},
            step_of<&KernelTable::sgd_step>(tutorial, 0, plain));
  cases.row({.name = "sgd momentum 16.8 M", .bytes = bytes_of_step(perceptron, 1)},
            step_of<&KernelTable::sgd_step>(perceptron, 1, momentum));
}

void adam_step(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool decoupled : {false, true})
    step_cases<&KernelTable::adam_step>(cases, decoupled ? "adamw" : "adam", 2, [=](const GroupStep& group) {
      return AdamParams{group, 0.9, 0.999, 1e-8F, decoupled};
    });
  for (const bool decoupled : {false, true})
    step_tests<&KernelTable::adam_step>(
        cases, decoupled ? "adamw amsgrad" : "adam amsgrad", 3,
        [=](const GroupStep& group) { return AdamParams{group, 0.9, 0.999, 1e-8F, decoupled, /*amsgrad=*/true}; });
}

void nadam_step(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool decoupled : {false, true})
    step_cases<&KernelTable::nadam_step>(
        cases, decoupled ? "nadam decoupled" : "nadam", 2,
        [=](const GroupStep& group) { return NadamParams{group, 0.9, 0.999, 0.96, 1e-7F, decoupled}; });
}

void rmsprop_step(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool centered : {false, true})
    for (const float momentum : {0.0F, 0.9F})
      step_cases<&KernelTable::rmsprop_step>(
          cases, fmt::format("rmsprop{}{}", centered ? " centered" : "", momentum != 0 ? " momentum" : ""),
          1 + (momentum != 0 ? 1 : 0) + (centered ? 1 : 0), [=](const GroupStep& group) {
            return RmspropParams{group, 0.99, 1e-8F, momentum, centered};
          });
}

void adagrad_step(Cases& cases) {
  if (cases.is_half()) return;
  step_cases<&KernelTable::adagrad_step>(cases, "adagrad", 1, [](const GroupStep& group) {
    return AdagradParams{group, 0.1F, 1e-10F};
  });
}

void update_average(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool ramp : {false, true}) {
    const auto params_of = [=](const GroupStep& group) { return AverageParams{group.clock, 0.3, ramp}; };
    step_tests<&KernelTable::update_average>(cases, ramp ? "ramp" : "constant", 0, params_of);
    if (!ramp)
      cases.large_row("moving average", 12,
                      step_of<&KernelTable::update_average>({cases.sizes.elements}, 0, params_of));
  }
}

void scale_gradients(Cases& cases) {
  if (cases.is_half()) return;
  cases.test("by a factor", {kExact}, [](Bench& b) {
    const auto tensors = in_place(odd_tensors(b, 0));
    const ScaleParams params{b.in({}, {0.3F}).floats()};
    return [=, &b] { b.kernels.scale_gradients(tensors, params, b.stream()); };
  });
  cases.large_row("scale gradients", 8, [n = cases.sizes.elements](Bench& b) {
    const auto tensors = in_place(tensors_of(b, {n}, 0));
    const ScaleParams params{b.in({}, {1}).floats()};
    return [=, &b] { b.kernels.scale_gradients(tensors, params, b.stream()); };
  });
}

void clamp_gradients(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool scaled : {false, true})
    cases.test(scaled ? "under loss scaling" : "plain", {kExact}, [=](Bench& b) {
      const auto tensors = in_place(odd_tensors(b, 0));
      const ClampParams params{0.2F, scaled ? loss_scale_on(b, 3, 0) : nullptr};
      return [=, &b] { b.kernels.clamp_gradients(tensors, params, b.stream()); };
    });
  cases.large_row("clamp gradients", 8, [n = cases.sizes.elements](Bench& b) {
    const auto tensors = in_place(tensors_of(b, {n}, 0));
    return [=, &b] { b.kernels.clamp_gradients(tensors, {0.2F}, b.stream()); };
  });
}

// Sums in double, in another order: they may round to the neighbouring float.
void gradient_norm(Cases& cases) {
  if (cases.is_half()) return;
  for (const float scale : {1.0F, 3.0F})
    for (const float most : {5.0F, 1e6F})
      cases.test(fmt::format("scale {}, at most {}", scale, most), {{.value = 2.4e-7F}}, [=](Bench& b) {
        auto* const result = reinterpret_cast<NormResult*>(b.out({2}, {0, 0}).floats());
        const auto tensors = odd_tensors(b, 0);
        const NormParams params{most, scale == 1 ? nullptr : loss_scale_on(b, scale, 0)};
        return [=, &b] { b.kernels.gradient_norm(tensors, params, result, b.stream()); };
      });
  cases.test("of nothing", {kExact}, [](Bench& b) {
    auto* const result = reinterpret_cast<NormResult*>(b.out({2}, {7, 7}).floats());
    return [=, &b] { b.kernels.gradient_norm({}, {5}, result, b.stream()); };
  });
  cases.large_row("gradient norm", 4, [n = cases.sizes.elements](Bench& b) {
    auto* const result = reinterpret_cast<NormResult*>(b.out({2}, {0, 0}).floats());
    const auto tensors = tensors_of(b, {n}, 0);
    return [=, &b] { b.kernels.gradient_norm(tensors, {1}, result, b.stream()); };
  });
}

void square_sums(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool bad : {false, true})
    cases.test(bad ? "a bad gradient" : "all finite", {{.value = 2.4e-7F}}, [=](Bench& b) {
      const auto tensors = odd_tensors(b, 0, bad);
      double* const sums = b.plain_out<double>(std::vector<double>(tensors.size(), 7));
      return [=, &b] { b.kernels.square_sums(tensors, sums, b.stream()); };
    });
  cases.test("of empty tensors", {kExact}, [](Bench& b) {
    const auto tensors = tensors_of(b, {0, 0}, 0);
    double* const sums = b.plain_out<double>({7, 7, 7});
    return [=, &b] { b.kernels.square_sums(tensors, sums, b.stream()); };
  });
  cases.large_row("square sums", 4, [n = cases.sizes.elements](Bench& b) {
    const auto tensors = tensors_of(b, {n}, 0);
    double* const sums = b.plain_out<double>({0});
    return [=, &b] { b.kernels.square_sums(tensors, sums, b.stream()); };
  });
}

void norm_of_sums(Cases& cases) {
  if (cases.is_half()) return;
  for (const Index count : {0, 1, 1000})
    for (const float scale : {1.0F, 3.0F})
      cases.test(fmt::format("of {}, scale {}", count, scale), {{.value = 2.4e-7F}}, [=](Bench& b) {
        auto* const result = reinterpret_cast<NormResult*>(b.out({2}, {7, 7}).floats());
        std::vector<double> squares(static_cast<std::size_t>(count) + 1);
        for (std::size_t i = 0; i < squares.size(); ++i) squares[i] = 0.25 + static_cast<double>(i % 7);
        const double* const sums = b.plain_in(squares);
        const NormParams params{5, scale == 1 ? nullptr : loss_scale_on(b, scale, 0)};
        return [=, &b] { b.kernels.norm_of_sums(sums, count, params, result, b.stream()); };
      });
  cases.row({.name = "norm of 1000 sums"}, [](Bench& b) {
    auto* const result = reinterpret_cast<NormResult*>(b.out({2}, {0, 0}).floats());
    const double* const sums = b.plain_in(std::vector<double>(1000, 1));
    return [=, &b] { b.kernels.norm_of_sums(sums, 1000, {1}, result, b.stream()); };
  });
}

void find_bad_gradients(Cases& cases) {
  if (cases.is_half()) return;
  for (const bool bad : {false, true})
    cases.test(bad ? "a bad gradient" : "all finite", {kExact}, [=](Bench& b) {
      const std::vector<UpdateTensor> tensors = odd_tensors(b, 0, bad);
      LossScaleState* const state = loss_scale_on(b, 8, 1);
      return [=, &b] { b.kernels.find_bad_gradients(tensors, state, b.stream()); };
    });
  cases.large_row("find bad gradients", 4, [n = cases.sizes.elements](Bench& b) {
    const std::vector<UpdateTensor> tensors = tensors_of(b, {n}, 0);
    LossScaleState* const state = loss_scale_on(b, 8, 1);
    return [=, &b] { b.kernels.find_bad_gradients(tensors, state, b.stream()); };
  });
}

void begin_loss_scale(Cases& cases) {
  if (cases.is_half()) return;
  for (const float scale : {0.0F, 0.5F, 8.0F})
    cases.test(fmt::format("scale {}", scale), {kExact}, [=](Bench& b) {
      const LossScaleState* const state = loss_scale_on(b, scale, -2, true);
      LossScaleStep* const step = loss_scale_step_on(b);
      return [=, &b] { b.kernels.begin_loss_scale({2, 0.5F, 3}, state, step, b.stream()); };
    });
  cases.row({.name = "begin loss scale"}, [](Bench& b) {
    const LossScaleState* const state = loss_scale_on(b, 8, 1);
    LossScaleStep* const step = loss_scale_step_on(b);
    return [=, &b] { b.kernels.begin_loss_scale({2, 0.5F, 3}, state, step, b.stream()); };
  });
}

void update_loss_scale(Cases& cases) {
  if (cases.is_half()) return;
  under_loss_scaling(cases);
  cases.row({.name = "update loss scale"}, [](Bench& b) {
    LossScaleState* const state = loss_scale_on(b, 8, 1);
    LossScaleStep* const step = loss_scale_step_on(b);
    return [=, &b] { b.kernels.update_loss_scale({2, 0.5F, 3}, step, state, b.stream()); };
  });
}

}  // namespace lockstep::testing::cases
