#include "lockstep/nn/branches.h"

#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/transfer.h"
#include "lockstep/core/error.h"
#include "lockstep/nn/added_losses.h"
#include "src/autograd/engine/parallel_branches.h"
#include "src/nn/module/forward_observer.h"
#include "src/nn/module/only_output.h"

namespace lockstep::nn {

namespace {

// A copy to another device, and its gradient's way back.
void count_copy(const Tensor& x, std::uint64_t& there, std::uint64_t& back) {
  there += x.bytes();
  if (requires_grad(x)) back += x.bytes();
}

}  // namespace

void Branches::place(const std::vector<Device*>& devices) {
  if (devices.empty()) throw InvalidArgument("Branches::place: got no device");
  placed_.clear();
  for (std::size_t b = 0; b < size(); ++b) {
    placed_.push_back(devices[b % devices.size()]);
    branch(b).to(*placed_.back());
  }
}

Device& Branches::device_of(std::size_t index, Device& otherwise) const {
  for (const NamedTensor& each : branch(index).state_dict()) return each.tensor.device();
  return index < placed_.size() ? *placed_[index] : otherwise;
}

// The output, and the losses that the branch's modules added.
std::vector<NamedTensor> Branches::run(std::size_t index, const Tensors& inputs, Device& device) {
  const AddedLosses added;
  Tensors own;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!options_.one_input_each || i == index) {
      own.push_back(to_device(inputs[i], device));
      if (&inputs[i].device() != &device) count_copy(inputs[i], traffic_[index].received, traffic_[index].sent);
    }
  std::vector<NamedTensor> results{{"", only_output(branch(index), branch(index)(own))}};
  results.insert(results.end(), added.all().begin(), added.all().end());
  return results;
}

Tensors Branches::forward_all(const Tensors& inputs) {
  if (size() == 0) throw InvalidArgument("Branches: it has no branch: append() one");
  if (inputs.empty() || (options_.one_input_each && inputs.size() != size()))
    throw InvalidArgument(
        "Branches: got {} inputs; expected {}", inputs.size(),
        options_.one_input_each ? fmt::format("one for each of its {} branches", size()) : "at least one");
  for (const Tensor& input : inputs)
    if (!input.defined()) throw InvalidArgument("Branches: an input is undefined");
  Device& home = inputs.front().device();
  std::vector<WideBranch> work;
  std::vector<std::vector<NamedTensor>> named(size());
  for (std::size_t b = 0; b < size(); ++b) {
    Device& device = device_of(b, home);
    work.push_back({[this, b, &inputs, &device, &named] {
                      named[b] = run(b, inputs, device);
                      Tensors results;
                      for (const NamedTensor& each : named[b]) results.push_back(each.tensor);
                      return results;
                    },
                    device});
  }
  // An observer belongs to this thread.
  const std::vector<Tensors> results = apply_branches(work, forward_observer == nullptr);
  Tensors outputs;
  for (std::size_t b = 0; b < size(); ++b) {
    outputs.push_back(to_device(results[b].front(), home));
    if (&results[b].front().device() != &home) count_copy(results[b].front(), traffic_[b].sent, traffic_[b].received);
    for (std::size_t r = 1; r < results[b].size(); ++r) add_loss(to_device(results[b][r], home), named[b][r].name);
  }
  if (options_.join == Join::kNone) return outputs;
  if (options_.join == Join::kConcat) return {concat(outputs, options_.axis)};
  Tensor sum = outputs.front();
  for (std::size_t b = 1; b < outputs.size(); ++b) sum = sum + outputs[b];
  return {sum};
}

std::string Branches::extra_repr() const {
  const std::string each = options_.one_input_each ? ", one_input_each=true" : "";
  switch (options_.join) {
    case Join::kConcat: return fmt::format("join=concat, axis={}{}", options_.axis, each);
    case Join::kAdd: return "join=add" + each;
    default: return "join=none" + each;
  }
}

}  // namespace lockstep::nn
