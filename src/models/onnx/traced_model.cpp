#include "src/models/onnx/traced_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/autograd/engine/trace.h"
#include "src/models/onnx/converters.h"
#include "src/nn/module/evaluation_mode.h"
#include "src/nn/module/forward_observer.h"

namespace lockstep::onnx {

namespace {

// Where a tensor of one trace comes from. Views and detached tensors are found by their memory, which a trace keeps.
class Origins {
 public:
  void add(const Tensor& tensor, const Operand& origin) {
    if (const auto node = node_of(tensor); node && origin.output == 0) by_node_[node.get()] = origin;
    by_memory_[tensor.buffer().data()].push_back({tensor, origin});
  }

  // The origin of the tensor itself, and then those of results that are views of the same values.
  std::vector<Operand> candidates(const Tensor& tensor) const {
    std::vector<Operand> all;
    if (const auto node = node_of(tensor)) {
      const auto found = by_node_.find(node.get());
      if (found != by_node_.end()) all.push_back(found->second);
    }
    const auto same_memory = by_memory_.find(tensor.buffer().data());
    if (same_memory == by_memory_.end() || tensor.count() == 0) return all;
    for (const Entry& entry : same_memory->second)
      if (entry.tensor.shape() == tensor.shape() && entry.tensor.dtype() == tensor.dtype()) all.push_back(entry.origin);
    return all;
  }

  bool has_memory(const Tensor& tensor) const {
    return tensor.count() > 0 && by_memory_.count(tensor.buffer().data()) != 0;
  }

 private:
  struct Entry {
    Tensor tensor;
    Operand origin;
  };
  std::unordered_map<const Node*, Operand> by_node_;
  std::unordered_map<const void*, std::vector<Entry>> by_memory_;
};

// One forward pass.
struct Pass {
  Tensors inputs, outputs;
  Trace trace;
  std::vector<std::string> paths;  // of the module that recorded each step

  Pass(nn::Module& module, Tensors given) : inputs(std::move(given)) {
    std::vector<const nn::Module*> running;
    std::map<const nn::Module*, std::string> names;
    name_all(module, "", names);
    const auto assign = [&] { paths.resize(trace.steps().size(), running.empty() ? "" : names[running.back()]); };
    const std::function<void(const nn::Module&)> begins = [&](const nn::Module& each) {
      assign();
      running.push_back(&each);
    };
    const nn::ForwardObserver ends = [&](const nn::Module&, std::span<const Tensor>, std::span<const Tensor>) {
      assign();
      if (!running.empty()) running.pop_back();
    };
    struct Observers {
      Observers(const std::function<void(const nn::Module&)>* announcer, const nn::ForwardObserver* observer) {
        nn::forward_announcer = announcer;
        nn::forward_observer = observer;
      }
      ~Observers() {
        nn::forward_announcer = nullptr;
        nn::forward_observer = nullptr;
      }
    } const observers(&begins, &ends);
    const NoGrad no_grad;
    const AutoCast no_cast(DType::kFloat32);
    outputs = module(inputs);
    assign();
  }

 private:
  static void name_all(const nn::Module& module, const std::string& path,
                       std::map<const nn::Module*, std::string>& to) {
    to.emplace(&module, path);
    for (const auto& [name, child] : module.children()) name_all(*child, path.empty() ? name : path + "." + name, to);
  }
};

// `count` rows: the given ones at the end, and before them others with their elements in reverse order. Numbers are
// also scaled and shifted, since examples are often all zeros; integers are not, since they must stay in their range.
Tensor other_batch(const Tensor& given, std::int64_t count) {
  const Tensor from = given.to(cpu_device());
  std::vector<std::int64_t> extents(from.shape().extents().begin(), from.shape().extents().end());
  const std::int64_t rows = std::exchange(extents[0], count);
  const Tensor to = Tensor::empty(Shape(std::span<const std::int64_t>(extents)), from.dtype(), cpu_device());
  const std::size_t element = size_of(from.dtype()), row = from.bytes() / static_cast<std::size_t>(rows);
  const auto* source = reinterpret_cast<const std::byte*>(from.buffer().data());
  auto* target = reinterpret_cast<std::byte*>(to.buffer().data());
  for (std::int64_t r = 0; r < count - rows && row > 0; ++r, target += row) {
    const std::byte* const last = source + static_cast<std::size_t>((rows - 1 - r % rows)) * row + row - element;
    for (std::size_t at = 0; at < row; at += element) std::memcpy(target + at, last - at, element);
  }
  if (from.bytes() > 0) std::memcpy(target, source, from.bytes());
  if (from.dtype() == DType::kFloat32)
    for (float& each : to.span<float>().first(static_cast<std::size_t>(to.count() - from.count())))
      each = 0.75F * each + 0.0625F;
  return to.to(given.device());
}

std::unique_ptr<Pass> other_pass(nn::Module& module, const Tensors& inputs, const BatchSizes& sizes) {
  try {
    return std::make_unique<Pass>(module, inputs);
  } catch (const Error& error) {
    throw InvalidArgument(
        "export_onnx: the module computes {} samples, but not {} samples with the same elements at other places: {}",
        sizes.first, sizes.second, error.what());
  }
}

// Joins the two traces.
class Joined {
 public:
  Joined(Pass& first, Pass& second, TracedModel& model) : passes_{&first, &second}, model_(model) {}

  void join() {
    check_steps();
    for (std::size_t i = 0; i < model_.first_inputs.size(); ++i)
      for (const int pass : {0, 1})
        origins_[pass].add(passes_[pass]->inputs[i], {Operand::Origin::kInput, i, 0, {}, {}});
    for (std::size_t i = 0; i < steps(0).size(); ++i) add_step(i);
    for (std::size_t i = 0; i < passes_[0]->outputs.size(); ++i) {
      const std::string what = fmt::format("output {}", i);
      model_.outputs.push_back(operand(what, passes_[0]->outputs[i], passes_[1]->outputs[i]));
    }
  }

 private:
  const std::vector<Trace::Step>& steps(int pass) const { return passes_[pass]->trace.steps(); }

  void check_steps() const {
    const std::size_t count = std::min(steps(0).size(), steps(1).size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::string a = steps(0)[i].node->name(), b = steps(1)[i].node->name();
      if (a != b || passes_[0]->paths[i] != passes_[1]->paths[i])
        throw InvalidArgument(
            "export_onnx: operator {} is '{}' in module '{}' for {} samples, but '{}' in module '{}' for {} samples: "
            "what the module calls may depend neither on the batch's size nor on its values",
            i, a, passes_[0]->paths[i], model_.sizes.first, b, passes_[1]->paths[i], model_.sizes.second);
    }
    if (steps(0).size() != steps(1).size())
      throw InvalidArgument(
          "export_onnx: the module calls {} operators for {} samples, but {} for {} samples: it depends on the batch "
          "size, as a loop over samples does; compute all samples in one call of each operator",
          steps(0).size(), model_.sizes.first, steps(1).size(), model_.sizes.second);
    if (passes_[0]->outputs.size() != passes_[1]->outputs.size())
      throw InvalidArgument("export_onnx: the module has {} outputs for {} samples, but {} for {} samples",
                            passes_[0]->outputs.size(), model_.sizes.first, passes_[1]->outputs.size(),
                            model_.sizes.second);
  }

  void add_step(std::size_t at) {
    const Trace::Step& a = steps(0)[at];
    const Trace::Step& b = steps(1)[at];
    TracedStep step;
    step.op = a.node->name();
    step.path = passes_[0]->paths[at];
    step.first_result = a.result, step.second_result = b.result;
    const auto first = a.node->attributes(), second = b.node->attributes();
    if (first && second) step.first = *first, step.second = *second;
    const OnnxOperator* const known = operator_of(step);
    is_known_.push_back(known != nullptr && first && second);
    const std::size_t inputs = a.node->inputs().size(), saved = Trace::saved_of(a).size();
    if (b.node->inputs().size() != inputs || Trace::saved_of(b).size() != saved)
      throw InvalidArgument(
          "export_onnx: {} has {} inputs for {} samples, but {} for {} samples: it depends on the batch size",
          step.text(), inputs, model_.sizes.first, b.node->inputs().size(), model_.sizes.second);
    for (std::size_t i = 0; i < inputs; ++i) {
      const Tensor &x = a.node->inputs()[i], &y = b.node->inputs().at(i);
      check_version(step, x, a.input_versions[i]);
      step.inputs.push_back(operand(step.text(), x, y));
    }
    for (std::size_t i = 0; known != nullptr && i < std::min(known->saved, saved); ++i) {
      const Tensor &x = Trace::saved_of(a)[i], &y = Trace::saved_of(b)[i];
      check_version(step, x, a.saved_versions[i]);
      step.saved.push_back(operand(step.text(), x, y));
    }
    for (const int pass : {0, 1}) {
      const Trace::Step& own = steps(pass)[at];
      origins_[pass].add(own.result, {Operand::Origin::kResult, at, 0, {}, {}});
      if (known != nullptr && known->has_indices)
        origins_[pass].add(Trace::saved_of(own)[0], {Operand::Origin::kResult, at, 1, {}, {}});
    }
    model_.steps.push_back(std::move(step));
  }

  static void check_version(const TracedStep& step, const Tensor& tensor, std::uint64_t version) {
    if (tensor.defined() && tensor.version() != version)
      throw InvalidArgument("export_onnx: {} read {}, which the module later changed in place: write into a new tensor",
                            step.text(), describe(tensor));
  }

  static bool is_same(const Operand& a, const Operand& b) {
    return a.origin == b.origin && a.index == b.index && a.output == b.output;
  }

  Operand operand(const std::string& reader, const Tensor& first, const Tensor& second) {
    if (!first.defined() || !second.defined()) return {};
    const std::vector<Operand> of_first = origins_[0].candidates(first), of_second = origins_[1].candidates(second);
    Operand a{Operand::Origin::kConstant, 0, 0, {}, {}};
    const auto common = std::find_if(of_first.begin(), of_first.end(), [&](const Operand& each) {
      return std::any_of(of_second.begin(), of_second.end(),
                         [&](const Operand& other) { return is_same(each, other); });
    });
    if (common != of_first.end())
      a = *common;
    else if (!of_first.empty() || !of_second.empty())
      throw InvalidArgument(
          "export_onnx: {} reads other results for {} samples than for {}: the module depends on the batch's size or "
          "on its values",
          reader, model_.sizes.first, model_.sizes.second);
    if (a.origin == Operand::Origin::kConstant && !origins_[0].has_memory(first))
      constants_.insert(first.buffer().data());
    else if (a.origin == Operand::Origin::kConstant && constants_.count(first.buffer().data()) == 0)
      throw InvalidArgument(
          "export_onnx: {} reads a view {} of another tensor that no operator has made: use reshape() of shapes.h, not "
          "reshaped()",
          reader, first.shape().text());
    a.first = first, a.second = second;
    return a;
  }

 public:
  // Removes the steps on which no output depends, and refuses those that remain and cannot be written.
  void keep_needed() {
    std::vector<bool> is_needed(model_.steps.size(), false);
    const auto need = [&](const Operand& each) {
      if (each.origin == Operand::Origin::kResult) is_needed[each.index] = true;
    };
    for (const Operand& output : model_.outputs) need(output);
    for (std::size_t i = model_.steps.size(); i-- > 0;) {
      if (!is_needed[i]) continue;
      for (const Operand& each : model_.steps[i].inputs) need(each);
      for (const Operand& each : model_.steps[i].saved) need(each);
    }
    std::vector<TracedStep> kept;
    std::vector<std::size_t> place(model_.steps.size());
    for (std::size_t i = 0; i < model_.steps.size(); ++i) {
      if (!is_needed[i]) continue;
      TracedStep& step = model_.steps[i];
      const OnnxOperator* const known = operator_of(step);
      if (!is_known_[i])
        throw InvalidArgument(
            "export_onnx: {} has no counterpart in ONNX{}", step.text(),
            known == nullptr || known->reason == nullptr
                ? ": its Node is not one of Lockstep's, or does not say what it computes; compute it with operators of "
                  "ops.h"
                : fmt::format(": {}", known->reason));
      if (known->convert == nullptr)
        throw InvalidArgument("export_onnx: {} cannot be written: {}", step.text(), known->reason);
      for (auto* operands : {&step.inputs, &step.saved})
        for (Operand& each : *operands)
          if (each.origin == Operand::Origin::kResult) each.index = place[each.index];
      place[i] = kept.size();
      kept.push_back(std::move(step));
    }
    for (Operand& output : model_.outputs)
      if (output.origin == Operand::Origin::kResult) output.index = place[output.index];
    model_.steps = std::move(kept);
  }

 private:
  Pass* passes_[2];
  TracedModel& model_;
  Origins origins_[2];
  std::set<const void*> constants_;  // memory of constants, of which a recorded result may be a view
  std::vector<bool> is_known_;
};

}  // namespace

std::string TracedStep::text() const {
  return fmt::format("'{}' in module '{}' (result {})", op, path, first_result.shape().text());
}

Extents extents_of(const std::string& what, const Shape& first, const Shape& second, const BatchSizes& sizes) {
  bool fits = first.dims() == second.dims();
  Extents extents;
  for (std::size_t d = 0; d < first.dims() && fits; ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    const std::int64_t a = first[dim], b = second[dim], more = sizes.second - sizes.first;
    if (a == b) {
      extents.push_back({0, a});
      continue;
    }
    const std::int64_t slope = (b - a) / more, fixed = a - slope * sizes.first;
    fits = (b - a) % more == 0 && slope > 0 && (fixed == 0 || (slope == 1 && fixed > 0));
    extents.push_back({slope, fixed});
  }
  if (!fits)
    throw InvalidArgument(
        "export_onnx: {} depends on the batch size: it is {} for {} samples, but {} for {} samples; expected extents "
        "that are fixed, multiples of the number of samples, or that number and a constant",
        what, first.text(), sizes.first, second.text(), sizes.second);
  return extents;
}

TracedModel trace_model(nn::Module& module, const Tensors& examples) {
  TracedModel model;
  const std::int64_t samples = examples[0].shape()[0];
  model.sizes = {samples, 2 * samples + 1};
  struct Random {
    const RandomState state = random_state();
    ~Random() { set_random_state(state); }
  } const random;
  const nn::EvaluationMode mode(module);
  Tensors firsts, seconds;
  for (const Tensor& example : examples) {
    firsts.push_back(example.clone());
    seconds.push_back(other_batch(example, model.sizes.second));
  }
  model.first_inputs = firsts, model.second_inputs = seconds;
  Pass first(module, firsts);
  const std::unique_ptr<Pass> second = other_pass(module, seconds, model.sizes);
  Joined joined(first, *second, model);
  joined.join();
  joined.keep_needed();
  return model;
}

}  // namespace lockstep::onnx
