#include "lockstep/nn/recurrent.h"

#include <fmt/format.h>

#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/extend.h"
#include "src/nn/layers/layer_parts.h"

namespace lockstep::nn {

namespace {

Tensor steps_first(const Tensor& x) { return transpose(x, 0, 1); }

// The state of one layer and direction, (N, H).
Tensor part_of(const Tensor& states, std::int64_t part) {
  return states.defined() ? squeeze(slice(states, 0, {part, part + 1}), 0) : Tensor();
}

}  // namespace

RecurrentModule::RecurrentModule(const char* kind, std::int64_t gates, std::int64_t input_size,
                                 std::int64_t hidden_size, const RecurrentLayerOptions& options)
    : kind_(kind), input_size_(input_size), hidden_size_(hidden_size), options_(options) {
  check_sizes(kind, {input_size, hidden_size, options.num_layers});
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw InvalidArgument("{}: dropout must be in [0, 1), got {}", kind, options.dropout);
  const std::int64_t rows = gates * hidden_size;
  for (std::int64_t layer = 0; layer < options.num_layers; ++layer)
    for (std::int64_t direction = 0; direction < directions(); ++direction) {
      RecurrentWeights& added = weights_.emplace_back();
      const std::string suffix = fmt::format("_l{}{}", layer, direction == 0 ? "" : "_reverse");
      const auto add_drawn = [&](const char* name, Tensor& tensor, const Shape& shape) {
        tensor = draw_uniform(shape, hidden_size);
        add_parameter(name + suffix, tensor);
      };
      add_drawn("weight_ih", added.weight_ih, {rows, layer == 0 ? input_size : hidden_size * directions()});
      add_drawn("weight_hh", added.weight_hh, {rows, hidden_size});
      if (!options.bias) continue;
      add_drawn("bias_ih", added.bias_ih, {rows});
      add_drawn("bias_hh", added.bias_hh, {rows});
    }
}

std::string RecurrentModule::extra_repr() const {
  return fmt::format("{}, {}{}{}{}{}", input_size_, hidden_size_,
                     options_.num_layers == 1 ? "" : fmt::format(", num_layers={}", options_.num_layers),
                     options_.bidirectional ? ", bidirectional" : "", options_.bias ? "" : ", bias=false",
                     options_.dropout > 0 ? fmt::format(", dropout={}", options_.dropout) : "");
}

const RecurrentWeights& RecurrentModule::weights(std::int64_t layer, bool reversed) const {
  if (layer < 0 || layer >= options_.num_layers || (reversed && !options_.bidirectional))
    throw InvalidArgument("{}: there are no {}weights of layer {}", kind_, reversed ? "reversed " : "", layer);
  return weights_[static_cast<std::size_t>(layer * directions() + (reversed ? 1 : 0))];
}

void RecurrentModule::check_x(const Tensor& x) const {
  check_activation(kind_, "x (N, T, I)", x, 3);
  if (x.shape()[2] != input_size_)
    throw InvalidArgument("{}: x (N, T, I) must have {} features, got {}", kind_, input_size_, x.shape().text());
}

void RecurrentModule::check_state(const char* what, const Tensor& state, std::int64_t samples) const {
  if (!state.defined()) return;
  check_activation(kind_, what, state, 3);
  const Shape expected{options_.num_layers * directions(), samples, hidden_size_};
  if (state.shape() != expected)
    throw InvalidArgument("{}: the initial {} must be (layers * directions, N, H) = {}, got {}", kind_, what,
                          expected.text(), state.shape().text());
}

RecurrentStart RecurrentModule::start_of(const Tensors& inputs, bool has_c) const {
  const std::size_t states = has_c ? 2 : 1;
  RecurrentStart start;
  std::size_t count = inputs.size();
  if (count > 1 && inputs.back().defined() && inputs.back().dtype() == DType::kInt64) {
    start.lengths = inputs.back();
    --count;
  }
  if (count != 1 && count != 1 + states)
    throw InvalidArgument("{}: got {} inputs, expected x or x, {}, and after them the lengths, int64, if there are any",
                          kind_, inputs.size(), has_c ? "h, c" : "h");
  if (count == 1) return start;
  start.h = inputs[1];
  if (has_c) start.c = inputs[2];
  return start;
}

template <typename Layer> Tensor RecurrentModule::run_layers(const Tensor& x, Layer&& layer) const {
  Tensor steps = steps_first(x);
  for (std::int64_t number = 0; number < options_.num_layers; ++number) {
    if (number > 0 && options_.dropout > 0 && is_training())  // samples come first, by which dropout numbers elements
      steps = steps_first(dropout(steps_first(steps), options_.dropout));
    Tensors outputs;
    for (std::int64_t direction = 0; direction < directions(); ++direction) {
      const std::int64_t place = number * directions() + direction;
      outputs.push_back(layer(place, steps, weights_[static_cast<std::size_t>(place)], direction == 1));
    }
    steps = outputs.size() == 1 ? outputs.front() : concat(outputs, 2);
  }
  return steps_first(steps);
}

LSTM::LSTM(std::int64_t input_size, std::int64_t hidden_size, const RecurrentLayerOptions& options)
    : RecurrentModule("LSTM", 4, input_size, hidden_size, options) {}

Tensors LSTM::forward_all(const Tensors& inputs) {
  const RecurrentStart start = start_of(inputs, /*has_c=*/true);
  LstmResult result = run(inputs.at(0), start);
  return {result.output, result.h, result.c};
}

LstmResult LSTM::run(const Tensor& x, const RecurrentStart& start) const {
  check_x(x);
  check_state("h", start.h, x.shape()[0]);
  check_state("c", start.c, x.shape()[0]);
  Tensors h, c;
  const Tensor output = run_layers(x, [&](std::int64_t place, const Tensor& steps, const RecurrentWeights& weights,
                                          bool reversed) {
    const LstmResult layer = lstm_layer(
        steps, weights,
        {.reversed = reversed, .lengths = start.lengths, .h = part_of(start.h, place), .c = part_of(start.c, place)});
    h.push_back(layer.h), c.push_back(layer.c);
    return layer.output;
  });
  return {output, stack(h), stack(c)};
}

GRU::GRU(std::int64_t input_size, std::int64_t hidden_size, const RecurrentLayerOptions& options)
    : RecurrentModule("GRU", 3, input_size, hidden_size, options) {}

Tensors GRU::forward_all(const Tensors& inputs) {
  const RecurrentStart start = start_of(inputs, /*has_c=*/false);
  GruResult result = run(inputs.at(0), start);
  return {result.output, result.h};
}

GruResult GRU::run(const Tensor& x, const RecurrentStart& start) const {
  check_x(x);
  check_state("h", start.h, x.shape()[0]);
  if (start.c.defined()) throw InvalidArgument("GRU: it has no c: leave out the initial c");
  Tensors h;
  const Tensor output =
      run_layers(x, [&](std::int64_t place, const Tensor& steps, const RecurrentWeights& weights, bool reversed) {
        const GruResult layer =
            gru_layer(steps, weights, {.reversed = reversed, .lengths = start.lengths, .h = part_of(start.h, place)});
        h.push_back(layer.h);
        return layer.output;
      });
  return {output, stack(h)};
}

}  // namespace lockstep::nn
