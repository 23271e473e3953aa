// Modules that together call every operator that export_onnx() writes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/models/onnx.h"
#include "lockstep/nn/module.h"

namespace lockstep::models {

// A module that is a function of its inputs, with layers.
class FunctionModule : public nn::Module {
 public:
  using Function = std::function<Tensors(const Tensors& inputs)>;
  explicit FunctionModule(Function function, std::vector<std::shared_ptr<nn::Module>> layers = {})
      : function_(std::move(function)), layers_(std::move(layers)) {
    for (std::size_t i = 0; i < layers_.size(); ++i) add("layer" + std::to_string(i), *layers_[i]);
  }
  Tensors forward_all(const Tensors& inputs) override { return function_(inputs); }
  std::string kind() const override { return "FunctionModule"; }

 private:
  Function function_;
  std::vector<std::shared_ptr<nn::Module>> layers_;
};

struct OnnxCase {
  std::string name;
  std::shared_ptr<nn::Module> module;
  std::function<Tensors(std::int64_t samples)> inputs;
  OnnxOptions options = {};
};

// A result and its name in messages.
struct NamedResult {
  std::string name;
  std::function<Tensor(const Tensors& inputs)> compute;
};
// One module with all results. Their number is the module's number of outputs.
OnnxCase case_of(const std::string& name, std::function<Tensors(std::int64_t samples)> inputs,
                 std::vector<NamedResult> results, std::vector<std::shared_ptr<nn::Module>> layers = {});

inline NamedResult of_two(const std::string& name,
                          const std::function<Tensor(const Tensor& a, const Tensor& b)>& function) {
  return {name, [function](const Tensors& inputs) { return function(inputs[0], inputs[1]); }};
}

// Normal numbers (samples, ...).
Tensor numbers(std::int64_t samples, const std::vector<std::int64_t>& rest);
// int64, 0 to bound - 1.
Tensor integers(std::int64_t samples, const std::vector<std::int64_t>& rest, std::int64_t bound);

std::vector<NamedResult> product_results();    // of a and b, (N, 3, 4) each
std::vector<NamedResult> attention_results();  // of q (N, 4, 6, 8), k and v (N, 4, 3, 8), and lengths (N)
std::vector<OnnxCase> operator_cases();        // of the functions of autograd/
std::vector<OnnxCase> layer_cases();           // of nn/
std::vector<OnnxCase> model_cases();           // of models/

}  // namespace lockstep::models
