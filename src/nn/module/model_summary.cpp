#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/nn/module.h"
#include "lockstep/tensor/random.h"
#include "src/nn/module/count_text.h"
#include "src/nn/module/evaluation_mode.h"
#include "src/nn/module/forward_observer.h"

namespace lockstep::nn {

namespace {

struct Row {
  std::string name, kind, output, parameters;
};

std::int64_t own_count(const Module& module) {
  std::int64_t count = 0;
  for (const NamedTensor& parameter : module.own_parameters()) count += parameter.tensor.count();
  return count;
}

std::string render(const std::vector<Row>& rows) {
  std::size_t name = 0, kind = 0, output = 0, parameters = 0;
  for (const Row& row : rows) {
    name = std::max(name, row.name.size());
    kind = std::max(kind, row.kind.size());
    output = std::max(output, row.output.size());
    parameters = std::max(parameters, row.parameters.size());
  }
  std::string text;
  for (const Row& row : rows)
    text += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}\n", row.name, name, row.kind, kind, row.output, output,
                        row.parameters, parameters);
  return text;
}

std::string shapes_of(std::span<const Tensor> outputs) {
  std::string text;
  for (const Tensor& output : outputs)
    text += (text.empty() ? "" : ", ") + (output.defined() ? output.shape().text() : "-");
  return text;
}

// While it lives: eval mode, no recording, and an observer. Afterwards everything is as before, including the random
// streams.
class Inspection {
 public:
  Inspection(Module& module, const ForwardObserver* observer) : mode_(module) { forward_observer = observer; }
  ~Inspection() {
    forward_observer = nullptr;
    set_random_state(random_);
  }
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;

 private:
  const NoGrad no_grad_;
  const RandomState random_ = random_state();
  const EvaluationMode mode_;
};

Device& device_of(const Module& module) {
  const auto state = module.state_dict();
  return state.empty() ? cpu_device() : state[0].tensor.device();
}

}  // namespace

void observe_forward(Module& module, std::span<const InputSpec> inputs, const ForwardObserver& observer) {
  const Inspection inspection(module, &observer);
  Tensors zeros;
  for (const InputSpec& input : inputs) zeros.push_back(Tensor::zeros(input.shape, input.dtype, device_of(module)));
  module(zeros);
}

std::string summary(Module& module, std::span<const InputSpec> inputs) {
  std::map<const Module*, std::string> outputs;
  observe_forward(module, inputs, [&](const Module& seen, std::span<const Tensor>, std::span<const Tensor> results) {
    outputs[&seen] = shapes_of(results);
  });
  const auto output_of = [&](const Module& part) { return outputs.count(&part) != 0 ? outputs[&part] : "-"; };

  std::vector<Row> rows = {{"name", "kind", "output", "parameters"}};
  std::int64_t total = own_count(module);
  const std::function<void(const Module&, const std::string&)> visit = [&](const Module& part,
                                                                           const std::string& path) {
    for (const auto& [name, child] : part.children()) {
      total += own_count(*child);
      rows.push_back({path + name, child->kind(), output_of(*child), with_commas(own_count(*child))});
      visit(*child, path + name + ".");
    }
  };
  visit(module, "");
  rows.push_back({"total", module.kind(), output_of(module), with_commas(total)});
  return render(rows);
}

std::string summary(Module& module, std::initializer_list<InputSpec> inputs) {
  return summary(module, std::span<const InputSpec>(inputs.begin(), inputs.size()));
}

std::string summary(Module& module, const Shape& input_shape) { return summary(module, {InputSpec{input_shape}}); }

}  // namespace lockstep::nn
