#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/nn/module.h"
#include "src/nn/forward_observer.h"

namespace lockstep::nn {

namespace {

struct Row {
  std::string name, kind, output, parameters;
};

// "1,234,567"
std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

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
    text += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}\n", row.name, name, row.kind, kind, row.output, output, row.parameters, parameters);
  return text;
}

}  // namespace

std::string summary(Module& module, const Shape& input_shape) {
  const NoGrad no_grad;
  std::map<const Module*, std::string> outputs;
  const ForwardObserver observer = [&](const Module& seen, const Tensor& result) { outputs[&seen] = result.shape().text(); };
  struct Observing {
    explicit Observing(const ForwardObserver* observer) { forward_observer = observer; }
    ~Observing() { forward_observer = nullptr; }
  } const observing(&observer);
  const auto parameters = module.parameters();
  module(Tensor::zeros(input_shape, DType::kFloat32, parameters.empty() ? cpu_device() : parameters[0].device()));

  std::vector<Row> rows = {{"name", "kind", "output", "parameters"}};
  std::int64_t total = own_count(module);
  const std::function<void(const Module&, const std::string&)> visit = [&](const Module& part, const std::string& path) {
    for (const auto& [name, child] : part.children()) {
      total += own_count(*child);
      rows.push_back({path + name, child->kind(), outputs[child], with_commas(own_count(*child))});
      visit(*child, path + name + ".");
    }
  };
  visit(module, "");
  rows.push_back({"total", module.kind(), outputs[&module], with_commas(total)});
  return render(rows);
}

}  // namespace lockstep::nn
