// The rows time whole layers: the product of the input, then for each step a product and a kernel.
#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct RecurrentCase {
  Index rows, width;
  bool has_lengths;

  Shape state() const { return {rows, width}; }
  Shape gates(Index count) const { return {rows, count * width}; }
  std::string name() const { return fmt::format("{} x {}{}", rows, width, has_lengths ? ", lengths" : ""); }
};

constexpr Index kStep = 3;  // samples that end at 0, 3, 6, .. have or have not ended

InputView lengths_of(Bench& b, const RecurrentCase& c) {
  std::vector<std::int64_t> lengths;
  for (Index row = 0; row < c.rows; ++row) lengths.push_back(row * 3 % 8);
  return c.has_lengths ? b.labels_in(lengths) : InputView();
}

InputView read(Bench& b, const Shape& shape, unsigned seed) { return b.in(shape, uniform(shape.count(), seed)); }
InputView read_floats(Bench& b, const Shape& shape, unsigned seed) {
  return b.floats_in(shape, uniform(shape.count(), seed));
}
OutputView written(Bench& b, const Shape& shape, unsigned seed, bool accumulate = false) {
  return b.out(shape, uniform(shape.count(), seed), accumulate);
}
// Values of gates after their functions, but for the last part of a GRU's.
InputView activated(Bench& b, const Shape& shape, unsigned seed) {
  Floats values = uniform(shape.count(), seed);
  for (float& value : values) value = 0.5F + 0.45F * value;
  return b.in(shape, values);
}

void for_all_cases(const std::function<void(const RecurrentCase&)>& visit) {
  for (const Index rows : {0, 1, 3, 9})
    for (const Index width : {1, 5, 16, 37})
      for (const bool has_lengths : {false, true}) visit({rows, width, has_lengths});
  visit({65, 300, true});
}

Bound step_bound(const Cases& cases, bool adds = false) {
  const float step = cases.is_half() ? step_of(cases.type) : 0;
  return {.value = 1e-5F + step, .absolute = 3e-6F + (adds ? 2 * step : 0)};
}
constexpr Bound kOfCells{.value = 1e-5F, .absolute = 3e-6F};

// A layer of the sizes that are timed.
struct TimedLayer {
  static constexpr Index kSteps = 50, kWidth = 256;
  Index batch, parts;  // parts: gates with a product

  explicit TimedLayer(const Cases& cases, Index parts) : batch(cases.sizes.batch / 2), parts(parts) {}
  double flops(int products) const {
    return 2.0 * products * static_cast<double>(kSteps * batch * parts * kWidth * kWidth);
  }
  Shape all(Index width) const { return {kSteps * batch, width}; }
  Shape of_step(Index width) const { return {batch, width}; }
  Shape weight() const { return {parts * kWidth, kWidth}; }
  std::string name(const char* what) const {
    return fmt::format("{}, {} x {} steps of {}", what, batch, Index{kSteps}, Index{kWidth});
  }
  InputView in_step(In of_all, Index step, Index width) const {
    const auto bytes = step * batch * width * static_cast<Index>(size_of(of_all.dtype));
    return {static_cast<const std::byte*>(of_all.data) + bytes, of_all.dtype, of_step(width)};
  }
  OutputView out_step(Out of_all, Index step, Index width, bool accumulate = false) const {
    const auto bytes = step * batch * width * static_cast<Index>(size_of(of_all.dtype));
    return {static_cast<std::byte*>(of_all.data) + bytes, of_all.dtype, of_step(width), accumulate};
  }
};

Floats small(Index count, unsigned seed) {
  Floats values = uniform(count, seed);
  for (float& value : values) value *= 0.0625F;
  return values;
}

Work lstm_layer(const TimedLayer& layer) {
  return [=](Bench& b) {
    constexpr Index kWidth = TimedLayer::kWidth;
    const InputView x = read(b, layer.all(kWidth), 1), w_in = b.in(layer.weight(), small(layer.weight().count(), 2)),
                    w_state = b.in(layer.weight(), small(layer.weight().count(), 3)), bias = read(b, {4 * kWidth}, 4),
                    start = read(b, layer.of_step(kWidth), 5), cell = read_floats(b, layer.of_step(kWidth), 6);
    const OutputView gates = written(b, layer.all(4 * kWidth), 7), h = written(b, layer.all(kWidth), 8),
                     products = written(b, layer.of_step(4 * kWidth), 9);
    const OutputView c = b.floats_out(layer.all(kWidth), uniform(layer.all(kWidth).count(), 10));
    return [=, &b] {
      b.kernels.linear(x, w_in, bias, false, gates, b.stream());
      for (Index t = 0; t < TimedLayer::kSteps; ++t) {
        const InputView before = t == 0 ? start : layer.in_step(h, t - 1, kWidth);
        b.kernels.linear(before, w_state, bias, false, products, b.stream());
        b.kernels.lstm_step(t, products, before, t == 0 ? cell : layer.in_step(c, t - 1, kWidth), {},
                            layer.out_step(gates, t, 4 * kWidth), layer.out_step(h, t, kWidth),
                            layer.out_step(c, t, kWidth), b.stream());
      }
    };
  };
}

Work lstm_layer_backward(const TimedLayer& layer) {
  return [=](Bench& b) {
    constexpr Index kWidth = TimedLayer::kWidth;
    const InputView x = read(b, layer.all(kWidth), 1), w_in = b.in(layer.weight(), small(layer.weight().count(), 2)),
                    w_state = b.in(layer.weight(), small(layer.weight().count(), 3)),
                    gates = activated(b, layer.all(4 * kWidth), 4), h = read(b, layer.all(kWidth), 5),
                    c = read_floats(b, layer.all(kWidth), 6);
    const OutputView h_grad = written(b, layer.all(kWidth), 7), gates_grad = written(b, layer.all(4 * kWidth), 8),
                     x_grad = written(b, layer.all(kWidth), 9);
    const OutputView c_grad = b.floats_out(layer.of_step(kWidth), uniform(layer.of_step(kWidth).count(), 10)),
                     in_grad = b.floats_out(layer.weight(), uniform(layer.weight().count(), 11)),
                     state_grad = b.floats_out(layer.weight(), uniform(layer.weight().count(), 12)),
                     bias_grad = b.floats_out({4 * kWidth}, uniform(4 * kWidth, 13));
    return [=, &b] {
      for (Index t = TimedLayer::kSteps; t-- > 0;) {
        const Index before = t == 0 ? 0 : t - 1;
        b.kernels.lstm_step_backward(t, layer.in_step(gates, t, 4 * kWidth), layer.in_step(c, before, kWidth),
                                     layer.in_step(c, t, kWidth), layer.in_step(h_grad, t, kWidth), {},
                                     layer.out_step(gates_grad, t, 4 * kWidth), {}, c_grad, b.stream());
        b.kernels.linear_backward_data(layer.in_step(gates_grad, t, 4 * kWidth), w_state,
                                       layer.out_step(h_grad, before, kWidth, t != 0), b.stream());
      }
      b.kernels.linear_backward_weights(x, gates_grad, in_grad, bias_grad, b.stream());
      b.kernels.linear_backward_weights(h, gates_grad, state_grad, bias_grad, b.stream());
      b.kernels.linear_backward_data(gates_grad, w_in, x_grad, b.stream());
    };
  };
}

Work gru_layer(const TimedLayer& layer) {
  return [=](Bench& b) {
    constexpr Index kWidth = TimedLayer::kWidth;
    const InputView x = read(b, layer.all(kWidth), 1), w_in = b.in(layer.weight(), small(layer.weight().count(), 2)),
                    w_state = b.in(layer.weight(), small(layer.weight().count(), 3)), bias = read(b, {3 * kWidth}, 4),
                    start = read(b, layer.of_step(kWidth), 5);
    const OutputView inputs = written(b, layer.all(3 * kWidth), 6), gates = written(b, layer.all(4 * kWidth), 7),
                     h = written(b, layer.all(kWidth), 8), products = written(b, layer.of_step(3 * kWidth), 9);
    return [=, &b] {
      b.kernels.linear(x, w_in, bias, false, inputs, b.stream());
      for (Index t = 0; t < TimedLayer::kSteps; ++t) {
        const InputView before = t == 0 ? start : layer.in_step(h, t - 1, kWidth);
        b.kernels.linear(before, w_state, bias, false, products, b.stream());
        b.kernels.gru_step(t, layer.in_step(inputs, t, 3 * kWidth), products, before, {},
                           layer.out_step(gates, t, 4 * kWidth), layer.out_step(h, t, kWidth), b.stream());
      }
    };
  };
}

Work gru_layer_backward(const TimedLayer& layer) {
  return [=](Bench& b) {
    constexpr Index kWidth = TimedLayer::kWidth;
    const InputView x = read(b, layer.all(kWidth), 1), w_in = b.in(layer.weight(), small(layer.weight().count(), 2)),
                    w_state = b.in(layer.weight(), small(layer.weight().count(), 3)),
                    gates = activated(b, layer.all(4 * kWidth), 4), h = read(b, layer.all(kWidth), 5);
    const OutputView h_grad = written(b, layer.all(kWidth), 6), x_grad = written(b, layer.all(kWidth), 7),
                     first_grad = written(b, layer.of_step(kWidth), 8),
                     inputs_grad = written(b, layer.all(3 * kWidth), 9),
                     products_grad = written(b, layer.all(3 * kWidth), 10);
    const OutputView in_grad = b.floats_out(layer.weight(), uniform(layer.weight().count(), 11)),
                     state_grad = b.floats_out(layer.weight(), uniform(layer.weight().count(), 12)),
                     bias_grad = b.floats_out({3 * kWidth}, uniform(3 * kWidth, 13));
    return [=, &b] {
      for (Index t = TimedLayer::kSteps; t-- > 0;) {
        const OutputView before_grad = t == 0 ? first_grad : layer.out_step(h_grad, t - 1, kWidth);
        b.kernels.gru_step_backward(t, layer.in_step(gates, t, 4 * kWidth),
                                    layer.in_step(h, t == 0 ? 0 : t - 1, kWidth), layer.in_step(h_grad, t, kWidth), {},
                                    layer.out_step(inputs_grad, t, 3 * kWidth),
                                    layer.out_step(products_grad, t, 3 * kWidth), before_grad, b.stream());
        OutputView added = before_grad;
        added.accumulate = true;
        b.kernels.linear_backward_data(layer.in_step(products_grad, t, 3 * kWidth), w_state, added, b.stream());
      }
      b.kernels.linear_backward_weights(x, inputs_grad, in_grad, bias_grad, b.stream());
      b.kernels.linear_backward_weights(h, products_grad, state_grad, bias_grad, b.stream());
      b.kernels.linear_backward_data(inputs_grad, w_in, x_grad, b.stream());
    };
  };
}

}  // namespace

void lstm_step(Cases& cases) {
  for_all_cases([&](const RecurrentCase& c) {
    cases.test(c.name(), {step_bound(cases), step_bound(cases), kOfCells}, [=](Bench& b) {
      const InputView products = read(b, c.gates(4), 1), h_before = read(b, c.state(), 2),
                      c_before = read_floats(b, c.state(), 3), lengths = lengths_of(b, c);
      const OutputView gates = written(b, c.gates(4), 4), h = written(b, c.state(), 5),
                       cells = b.floats_out(c.state(), uniform(c.state().count(), 6));
      return
          [=, &b] { b.kernels.lstm_step(kStep, products, h_before, c_before, lengths, gates, h, cells, b.stream()); };
    });
  });
  const TimedLayer layer(cases, 4);
  cases.row({.name = layer.name("lstm forward"), .flops = layer.flops(2)}, lstm_layer(layer));
}

void lstm_step_backward(Cases& cases) {
  for_all_cases([&](const RecurrentCase& c) {
    cases.test(c.name(), {step_bound(cases), step_bound(cases, true), kOfCells}, [=](Bench& b) {
      const InputView gates = activated(b, c.gates(4), 1), c_before = read_floats(b, c.state(), 2),
                      cells = read_floats(b, c.state(), 3), h_grad = read(b, c.state(), 4), lengths = lengths_of(b, c);
      const OutputView gates_grad = written(b, c.gates(4), 5), before_grad = written(b, c.state(), 6, true),
                       c_grad = b.floats_out(c.state(), uniform(c.state().count(), 7));
      return [=, &b] {
        b.kernels.lstm_step_backward(kStep, gates, c_before, cells, h_grad, lengths, gates_grad,
                                     c.has_lengths ? before_grad : OutputView(), c_grad, b.stream());
      };
    });
  });
  const TimedLayer layer(cases, 4);
  cases.row({.name = layer.name("lstm backward"), .flops = layer.flops(4)}, lstm_layer_backward(layer));
}

void gru_step(Cases& cases) {
  for_all_cases([&](const RecurrentCase& c) {
    cases.test(c.name(), {step_bound(cases)}, [=](Bench& b) {
      const InputView inputs = read(b, c.gates(3), 1), products = read(b, c.gates(3), 2),
                      h_before = read(b, c.state(), 3), lengths = lengths_of(b, c);
      const OutputView gates = written(b, c.gates(4), 4), h = written(b, c.state(), 5);
      return [=, &b] { b.kernels.gru_step(kStep, inputs, products, h_before, lengths, gates, h, b.stream()); };
    });
  });
  const TimedLayer layer(cases, 3);
  cases.row({.name = layer.name("gru forward"), .flops = layer.flops(2)}, gru_layer(layer));
}

void gru_step_backward(Cases& cases) {
  for_all_cases([&](const RecurrentCase& c) {
    cases.test(c.name(), {step_bound(cases), step_bound(cases), step_bound(cases, true)}, [=](Bench& b) {
      const InputView gates = activated(b, c.gates(4), 1), h_before = read(b, c.state(), 2),
                      h_grad = read(b, c.state(), 3), lengths = lengths_of(b, c);
      const OutputView inputs_grad = written(b, c.gates(3), 4), products_grad = written(b, c.gates(3), 5),
                       before_grad = written(b, c.state(), 6, true);
      return [=, &b] {
        b.kernels.gru_step_backward(kStep, gates, h_before, h_grad, lengths, inputs_grad, products_grad, before_grad,
                                    b.stream());
      };
    });
  });
  const TimedLayer layer(cases, 3);
  cases.row({.name = layer.name("gru backward"), .flops = layer.flops(4)}, gru_layer_backward(layer));
}

}  // namespace lockstep::testing::cases
