#include "examples/cifar10/classic_summaries.h"

#include <algorithm>
#include <cmath>

namespace ls = lockstep;

namespace {

constexpr float kLossDecay = 0.9f;
constexpr std::int64_t kImages = 3;

std::string with_slashes(std::string name) {
  std::replace(name.begin(), name.end(), '.', '/');  // TensorBoard groups tags by these
  return name;
}

float share_of_zeros(const ls::Tensor& x) {
  const ls::Tensor here = x.to(ls::cpu_device());
  const auto values = std::span(here.data<float>(), static_cast<std::size_t>(here.count()));
  return static_cast<float>(std::count(values.begin(), values.end(), 0.0f)) /
         static_cast<float>(std::max<std::size_t>(values.size(), 1));
}

// The first images, scaled for display. Their values have mean 0, which becomes grey; the value furthest from 0 becomes
// 0 or 1.
ls::Tensor to_show(const ls::Tensor& images) {
  const std::int64_t count = std::min(kImages, images.shape()[0]);
  const ls::Tensor some = ls::slice(images.to(ls::cpu_device()), {{.stop = count}});
  const std::size_t each = static_cast<std::size_t>(some.count() / count);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto values = std::span(some.data<float>() + static_cast<std::size_t>(i) * each, each);
    float most = 1e-6f;
    for (const float value : values) most = std::max(most, std::abs(value));
    for (float& value : values) value = 0.5f + 0.5f * value / most;
  }
  return some;
}

}  // namespace

void LossAverages::update(const std::vector<ls::train::NamedLoss>& losses) {
  for (const auto& [name, value] : losses) {
    const auto [average, is_first] = averages_.try_emplace(name, value);
    if (!is_first) average->second = kLossDecay * average->second + (1 - kLossDecay) * value;
  }
}

void write_summary(ls::train::SummaryWriter& writer, ClassicNet& net, const StepSummary& summary) {
  if (!writer.writes()) return;
  const std::int64_t step = summary.step;
  for (const auto& [name, value] : summary.losses) {
    writer.add_scalar(name + " (raw)", value, step);
    writer.add_scalar(name, summary.averages.of(name), step);
  }
  writer.add_scalar("learning_rate", summary.learning_rate, step);
  for (const auto& [name, variable] : net.named_parameters()) {
    writer.add_histogram(with_slashes(name), variable, step);
    writer.add_histogram(with_slashes(name) + "/gradients", ls::grad(variable), step);
  }
  for (const auto& [layer, activations] : net.activations(summary.images.to(net.parameters().front().device()))) {
    writer.add_histogram(layer + "/activations", activations, step);
    writer.add_scalar(layer + "/sparsity", share_of_zeros(activations), step);
  }
  writer.add_images("images", to_show(summary.images), step);
}
