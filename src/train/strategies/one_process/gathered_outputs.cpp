#include "src/train/strategies/one_process/gathered_outputs.h"

#include <algorithm>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/shapes.h"

namespace lockstep::train {

std::vector<PartRows> cut_rows(std::int64_t rows, std::size_t devices) {
  const auto parts = static_cast<std::int64_t>(devices);
  const std::int64_t each = (rows + parts - 1) / parts;
  std::vector<PartRows> cut;
  for (std::int64_t begin = 0; begin < rows; begin += each) cut.push_back({begin, std::min(each, rows - begin)});
  return cut;
}

void arrange(Computation& all, const std::vector<Tensors>& outputs,
             const std::vector<std::vector<NamedTensor>>& added) {
  const auto check_counts = [](std::size_t copy, std::size_t count, std::size_t first, const char* what) {
    if (count != first)
      throw InvalidArgument("{}: device {} of the list has {} {}, the first has {}; the counts must match",
                            kDataParallel, copy, count, what, first);
  };
  for (std::size_t copy = 0; copy < outputs.size(); ++copy) {
    check_counts(copy, outputs[copy].size(), outputs[0].size(), "outputs");
    check_counts(copy, added[copy].size(), added[0].size(), "added losses");
    all.outputs.resize(outputs[0].size() + added[0].size());
    for (std::size_t i = 0; i < outputs[0].size(); ++i) {
      all.outputs[i].how =
          outputs[copy][i].shape().dims() == 0 ? GatheredOutput::How::kScalars : GatheredOutput::How::kRows;
      all.outputs[i].parts.push_back(outputs[copy][i]);
    }
    for (std::size_t i = 0; i < added[0].size(); ++i) {
      GatheredOutput& loss = all.outputs[outputs[0].size() + i];
      loss.how = GatheredOutput::How::kWeightedMean;
      loss.name = added[0][i].name;
      loss.parts.push_back(added[copy][i].tensor);
    }
  }
}

Tensor join(const Computation& all, const GatheredOutput& output, Device& device) {
  const NoGrad no_grad;
  Tensors parts;
  for (const Tensor& part : output.parts) {
    const Tensor here = detach(part).to(device);
    parts.push_back(output.how == GatheredOutput::How::kRows ? here : here.reshaped({1}));
  }
  if (output.how != GatheredOutput::How::kWeightedMean) return parts.size() == 1 ? parts.front() : concat(parts);
  const Tensor mean = Tensor::zeros({1}, DType::kFloat32, device);
  for (std::size_t copy = 0; copy < parts.size(); ++copy) {
    const Tensor share = empty_like(parts[copy]);
    kernels_of(mean).scale(parts[copy], all.weight(copy), share, stream_of(mean));
    kernels_of(mean).add(mean, share, mean, stream_of(mean));
  }
  return mean.reshaped({});
}

Tensor gradient_of_part(const Computation& all, const GatheredOutput& output, std::size_t copy) {
  const Tensor& part = output.parts[copy];
  if (output.how == GatheredOutput::How::kRows) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < copy; ++i) begin += output.parts[i].shape()[0];
    return view_of_rows(output.gradient, {begin, part.shape()[0]}).to(part.device());
  }
  if (output.how == GatheredOutput::How::kScalars) {
    const auto at = static_cast<std::int64_t>(copy);
    return view_of_rows(output.gradient, {at, 1}).to(part.device()).reshaped(part.shape());
  }
  const Tensor gradient = output.gradient.to(part.device());
  const Tensor scaled = empty_like(gradient);
  kernels_of(gradient).scale(gradient, all.weight(copy), scaled, stream_of(gradient));
  return scaled.reshaped(part.shape());
}

void GatheredOutputNode::backward(const Tensor& result_grad, std::span<const GradTarget> targets) {
  if (!targets[0]) return;
  computation_->outputs[output_].gradient = result_grad.clone();  // the node's own memory ends with this call
  targets[0].give(Tensor::zeros({1}, DType::kFloat32, input(0).device()));
}

namespace {

Tensor sum_of(const Tensors& parts) {
  if (parts.size() == 1) return parts.front();
  const Tensor sum = empty_like(parts.front());
  kernels_of(sum).add(parts[0], parts[1], sum, stream_of(sum));
  for (std::size_t i = 2; i < parts.size(); ++i) kernels_of(sum).add(sum, parts[i], sum, stream_of(sum));
  return sum;
}

}  // namespace

void HubNode::backward(const Tensor&, std::span<const GradTarget> targets) {
  for (std::size_t i = 0; i < inputs().size(); ++i) saved(i);  // throws if it was changed
  const std::vector<Tensors> gradients = run_backward_();
  for (std::size_t i = 0; i < inputs().size(); ++i) {
    if (!targets[i]) continue;
    Device& device = input(i).device();
    Tensors here;
    for (const Tensors& of_copy : gradients)
      if (of_copy[i].defined()) here.push_back(of_copy[i].to(device));
    if (i >= parameters_ && here.size() == gradients.size())
      targets[i].give(here.size() == 1 ? here.front() : concat(here));  // rows of an input
    else if (here.empty())
      targets[i].give(Tensor::zeros(input(i).shape(), input(i).dtype(), device));
    else
      targets[i].give(sum_of(here));
  }
}

}  // namespace lockstep::train
