#include "lockstep/autograd/recurrent.h"

#include <algorithm>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/layers/length_mask.h"
#include "src/autograd/layers/recurrent_steps.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// Result: the states of all steps, (T, N, H), then the last c, (N, H). Inputs: x, h, c, then the weights. Saved: x, the
// weights as they were read, the gates, the cells, the result, the initial h and c, the lengths.
class LstmNode : public Node {
 public:
  LstmNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const StepOrder& order,
           std::vector<std::int64_t> lengths)
      : Node(std::move(inputs), std::move(saved)), order_(order), lengths_(std::move(lengths)) {}
  const char* name() const override { return "lstm_layer"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"reversed", std::int64_t{order_.reversed}}, {"lengths", lengths_}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    const Tensor &gates = saved(3), &cells = saved(4), &states = saved(5), &first_c = saved(7), &lengths = saved(8);
    const Tensor gates_grad = empty_like(gates), h_grad = filled_like(saved(6), 0), c_grad = empty_like(first_c);
    kernels.convert(step_of(result_grad, order_.steps), c_grad, stream);
    for (std::int64_t nth = order_.steps; nth-- > 0;) {
      const std::int64_t step = order_.step(nth), before = order_.step(nth - 1);
      const OutputView earlier = nth == 0 ? OutputView(h_grad) : writable_step(result_grad, before);
      kernels.lstm_step_backward(step, step_of(gates, step), nth == 0 ? InputView(first_c) : step_of(cells, before),
                                 step_of(cells, step), step_of(result_grad, step), lengths,
                                 writable_step(gates_grad, step), earlier, c_grad, stream);
      if (nth > 0 || targets[1])
        kernels.linear_backward_data(step_of(gates_grad, step), saved(2), added(earlier), stream);
    }
    if (targets[1]) targets[1].give(h_grad);
    if (targets[2]) targets[2].give(c_grad);
    write_weight_grads({saved(0), saved(1), states, saved(6)}, gates_grad, gates_grad, order_, targets[0],
                       targets.subspan(3));
  }

 private:
  StepOrder order_;
  std::vector<std::int64_t> lengths_;  // empty: all samples have all steps
};

// Result: the states of all steps, (T, N, H). Inputs: x, h, then the weights. Saved: x, the weights as they were read,
// the gates, the result, the initial h, the lengths.
class GruNode : public Node {
 public:
  GruNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const StepOrder& order,
          std::vector<std::int64_t> lengths)
      : Node(std::move(inputs), std::move(saved)), order_(order), lengths_(std::move(lengths)) {}
  const char* name() const override { return "gru_layer"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"reversed", std::int64_t{order_.reversed}}, {"lengths", lengths_}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    const Tensor &gates = saved(3), &states = saved(4), &first = saved(5), &lengths = saved(6);
    const Shape grads{order_.steps, first.shape()[0], 3 * first.shape()[1]};
    const Tensor input_grad = empty_like(gates, grads), state_grad = empty_like(gates, grads),
                 h_grad = filled_like(first, 0);
    for (std::int64_t nth = order_.steps; nth-- > 0;) {
      const std::int64_t step = order_.step(nth), before = order_.step(nth - 1);
      const OutputView earlier = nth == 0 ? OutputView(h_grad) : writable_step(result_grad, before);
      kernels.gru_step_backward(step, step_of(gates, step), nth == 0 ? InputView(first) : step_of(states, before),
                                step_of(result_grad, step), lengths, writable_step(input_grad, step),
                                writable_step(state_grad, step), earlier, stream);
      if (nth > 0 || targets[1])
        kernels.linear_backward_data(step_of(state_grad, step), saved(2), added(earlier), stream);
    }
    if (targets[1]) targets[1].give(h_grad);
    write_weight_grads({saved(0), saved(1), states, first}, input_grad, state_grad, order_, targets[0],
                       targets.subspan(2));
  }

 private:
  StepOrder order_;
  std::vector<std::int64_t> lengths_;  // empty: all samples have all steps
};

void check_weight(const char* operation, const char* what, const Tensor& weight, std::int64_t rows,
                  std::int64_t columns, const Tensor& x) {
  check_input(operation, what, weight, 2, &x.device());
  if (weight.shape() != Shape{rows, columns})
    throw InvalidArgument("{}: {} must be {} for x {}, got {}", operation, name_argument(what, weight),
                          Shape{rows, columns}.text(), x.shape().text(), weight.shape().text());
}

void check_bias(const char* operation, const char* what, const Tensor& bias, std::int64_t count, const Tensor& x) {
  check_input(operation, what, bias, 1, &x.device());
  if (bias.count() != count)
    throw InvalidArgument("{}: {} must have {} elements, got {}", operation, name_argument(what, bias), count,
                          bias.shape().text());
}

// Returns the width of the state.
std::int64_t check_weights(const char* operation, const Tensor& x, const RecurrentWeights& weights,
                           std::int64_t gates) {
  check_input(operation, "weight_hh", weights.weight_hh, 2, &x.device());
  const std::int64_t width = weights.weight_hh.shape()[1];
  check_weight(operation, "weight_hh", weights.weight_hh, gates * width, width, x);
  check_weight(operation, "weight_ih", weights.weight_ih, gates * width, x.shape()[2], x);
  if (weights.bias_ih.defined() != weights.bias_hh.defined())
    throw InvalidArgument("{}: only one of bias_ih and bias_hh is defined: pass both, or none", operation);
  if (!weights.bias_ih.defined()) return width;
  check_bias(operation, "bias_ih", weights.bias_ih, gates * width, x);
  check_bias(operation, "bias_hh", weights.bias_hh, gates * width, x);
  return width;
}

// The initial state (N, H) in this type; zeros if there is none.
Tensor first_state(const char* operation, const char* what, const Tensor& given, const Tensor& x, std::int64_t width,
                   DType type) {
  const Shape expected{x.shape()[1], width};
  if (!given.defined()) return filled_like(empty_like(x, expected, type), 0);
  check_activation(operation, what, given, 2, &x.device());
  if (given.shape() != expected)
    throw InvalidArgument("{}: the initial {} must be (N, H) = {}, got {}", operation, what, expected.text(),
                          given.shape().text());
  return cast(given, type);
}

// The lengths as the kernels read them; undefined if there are none.
Tensor lengths_on(const SampleLengths& lengths, Device& device) {
  if (lengths.empty()) return {};
  const std::span<const std::int64_t> values = lengths.values();
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, device);
}

// One call of lstm_layer() or gru_layer(), with its operands checked and converted.
struct RecurrentCall {
  RecurrentCall(const char* operation, const Tensor& given, const RecurrentWeights& weights,
                const RecurrentOptions& options, std::int64_t gates) {
    check_activation(operation, "x (T, N, I)", given, 3);
    x = autocast(given);
    order = {x.shape()[0], options.reversed};
    if (order.steps == 0) throw InvalidArgument("{}: x {} has no steps", operation, x.shape().text());
    samples = x.shape()[1];
    width = check_weights(operation, x, weights, gates);
    options.lengths.check(operation, samples, order.steps);
    lengths = lengths_on(options.lengths, x.device());
    if (lengths.defined()) valid = options.lengths.valid_steps(order.steps, x.device());
    // The gradients of the weights are products with all of x, in which 0 times an infinite or NaN padding is NaN.
    x = only_valid(x);
    h = first_state(operation, "h", options.h, x, width, x.dtype());
    weight_ih = read_as(x, weights.weight_ih), weight_hh = read_as(x, weights.weight_hh);
    bias_ih = read_as(x, weights.bias_ih), bias_hh = read_as(x, weights.bias_hh);
    turned_weight_hh = turned_for_few_rows();
  }

  // weight_hh (G H, H) as (H, G H), for the CPU's products of few rows: their time is that of packing the weight, which
  // a product with rows of the result's width does not need. Undefined if that would not be faster; the CPU uses the
  // weight as it is for up to four rows.
  Tensor turned_for_few_rows() const {
    constexpr std::int64_t kFewestRows = 5, kFewRows = 64, kWorthwhile = 4;
    if (x.device().kind() != DeviceKind::kCpu || samples < kFewestRows || samples >= kFewRows ||
        order.steps < kWorthwhile)
      return {};
    // By the kernel: it is not an operator of the model, whose graph may not depend on the number of samples.
    const std::int64_t rows = weight_hh.shape()[0];
    const Tensor turned = empty_like(weight_hh, {width, rows});
    kernels_of(x).copy_strided({turned.shape(), {1, width}, {rows, 1}}, weight_hh, turned, stream_of(x));
    return turned;
  }

  // The products of a state (N, H), with the bias.
  void multiply_state(const InputView& state, const Tensor& products) const {
    const KernelTable& kernels = kernels_of(x);
    if (!turned_weight_hh.defined()) return kernels.linear(state, weight_hh, bias_hh, false, products, stream_of(x));
    kernels.linear_backward_data(state, turned_weight_hh, products, stream_of(x));
    if (bias_hh.defined()) kernels.bias(products, bias_hh, stream_of(x));
  }

  // The products of all steps with the input, (T, N, gates * H).
  Tensor of_input(std::int64_t gates) const {
    const Tensor products = empty_like(x, {order.steps, samples, gates * width});
    kernels_of(x).linear(as_rows(x), weight_ih, bias_ih, false, writable_rows(products), stream_of(x));
    return products;
  }
  Tensor only_valid(const Tensor& values) const {
    return valid.defined() ? where(valid, values, constant_like(values, 0)) : values;
  }
  Tensor last(const Tensor& states) const {
    const std::int64_t step = order.step(order.steps - 1);
    return squeeze(slice(states, 0, {step, step + 1}), 0);
  }

  Tensor x, h, lengths, valid, weight_ih, weight_hh, turned_weight_hh, bias_ih, bias_hh;
  StepOrder order;
  std::int64_t samples = 0, width = 0;
};

}  // namespace

SampleLengths::SampleLengths(const Tensor& lengths) {
  if (!lengths.defined()) return;
  check_input("lengths", "lengths (N)", lengths, 1, nullptr, DType::kInt64);
  const Tensor host = lengths.to(cpu_device());
  const auto values = host.span<std::int64_t>();
  lengths_.assign(values.begin(), values.end());
}

void SampleLengths::check(const char* operation, std::int64_t samples, std::int64_t steps) const {
  if (lengths_.empty()) return;
  if (static_cast<std::int64_t>(lengths_.size()) != samples)
    throw InvalidArgument("{}: expected one length for each of {} samples, got {}", operation, samples,
                          lengths_.size());
  for (std::size_t n = 0; n < lengths_.size(); ++n)
    if (lengths_[n] < 0 || lengths_[n] > steps)
      throw InvalidArgument("{}: lengths[{}] must be in [0, {}], the number of steps, got {}", operation, n, steps,
                            lengths_[n]);
}

Tensor SampleLengths::valid_steps(std::int64_t steps, Device& device) const {
  return step_mask(lengths_, steps, device);
}

LstmResult lstm_layer(const Tensor& given, const RecurrentWeights& weights, const RecurrentOptions& options) {
  const RecurrentCall call("lstm_layer", given, weights, options, 4);
  const StepOrder& order = call.order;
  const Tensor& x = call.x;
  const Tensor c = first_state("lstm_layer", "c", options.c, x, call.width, DType::kFloat32);
  const Tensor gates = call.of_input(4), products = empty_like(x, {call.samples, 4 * call.width});
  const Tensor cells = empty_like(x, {order.steps, call.samples, call.width}, DType::kFloat32);
  const Tensor result = empty_like(x, {order.steps + 1, call.samples, call.width});
  for (std::int64_t nth = 0; nth < order.steps; ++nth) {
    const std::int64_t step = order.step(nth), before = order.step(nth - 1);
    const InputView h_before = nth == 0 ? InputView(call.h) : step_of(result, before);
    call.multiply_state(h_before, products);
    kernels_of(x).lstm_step(step, products, h_before, nth == 0 ? InputView(c) : step_of(cells, before), call.lengths,
                            writable_step(gates, step), writable_step(result, step), writable_step(cells, step),
                            stream_of(x));
  }
  kernels_of(x).convert(step_of(cells, order.step(order.steps - 1)), writable_step(result, order.steps), stream_of(x));
  record<LstmNode>(
      result, {x, call.h, c, weights.weight_ih, weights.weight_hh, weights.bias_ih, weights.bias_hh},
      std::vector{x, call.weight_ih, call.weight_hh, gates, cells, detach(result), call.h, c, call.lengths}, order,
      options.lengths.values());
  const Tensor states = slice(result, 0, {0, order.steps});
  return {call.only_valid(states), call.last(states), squeeze(slice(result, 0, {order.steps, order.steps + 1}), 0)};
}

GruResult gru_layer(const Tensor& given, const RecurrentWeights& weights, const RecurrentOptions& options) {
  if (options.c.defined()) throw InvalidArgument("gru_layer: a GRU has no c: leave out the option");
  const RecurrentCall call("gru_layer", given, weights, options, 3);
  const StepOrder& order = call.order;
  const Tensor& x = call.x;
  const Tensor inputs = call.of_input(3), products = empty_like(x, {call.samples, 3 * call.width});
  const Tensor gates = empty_like(x, {order.steps, call.samples, 4 * call.width});
  const Tensor result = empty_like(x, {order.steps, call.samples, call.width});
  for (std::int64_t nth = 0; nth < order.steps; ++nth) {
    const std::int64_t step = order.step(nth), before = order.step(nth - 1);
    const InputView h_before = nth == 0 ? InputView(call.h) : step_of(result, before);
    call.multiply_state(h_before, products);
    kernels_of(x).gru_step(step, step_of(inputs, step), products, h_before, call.lengths, writable_step(gates, step),
                           writable_step(result, step), stream_of(x));
  }
  record<GruNode>(result, {x, call.h, weights.weight_ih, weights.weight_hh, weights.bias_ih, weights.bias_hh},
                  std::vector{x, call.weight_ih, call.weight_hh, gates, detach(result), call.h, call.lengths}, order,
                  options.lengths.values());
  return {call.only_valid(result), call.last(result)};
}

}  // namespace lockstep
