// Trainer::summary() prints the same table as Keras.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"
#include "src/nn/module/count_text.h"
#include "src/nn/module/forward_observer.h"
#include "src/train/trainer/trainer_impl.h"

namespace lockstep::train {

namespace {

using Cells = std::array<std::string, 3>;

struct Size {
  std::int64_t count = 0;
  std::size_t bytes = 0;
  void add(const Tensor& tensor) {
    count += tensor.count();
    bytes += tensor.bytes();
  }
  std::string text() const {
    const auto amount = static_cast<double>(bytes);
    const std::string size = amount < 1024            ? fmt::format("{:.2f} B", amount)
                             : amount < 1024.0 * 1024 ? fmt::format("{:.2f} KB", amount / 1024)
                                                      : fmt::format("{:.2f} MB", amount / 1024 / 1024);
    return fmt::format("{} ({})", nn::with_commas(count), size);
  }
};

// The first extent is the batch's.
std::string shape_text(const Tensor& output) {
  if (!output.defined()) return "-";
  std::string text;
  for (std::size_t i = 0; i < output.shape().dims(); ++i)
    text += i == 0 ? "None" : fmt::format(", {}", output.shape()[i]);
  return output.shape().dims() == 1 ? "(None,)" : "(" + text + ")";
}

std::int64_t count_of(const nn::Module& module) {
  std::int64_t count = 0;
  for (const NamedTensor& entry : module.state_dict()) count += entry.tensor.count();
  return count;
}

std::string render(const std::string& model, const std::vector<Cells>& rows, const std::vector<std::string>& totals) {
  std::array<std::size_t, 3> width{24, 22, 9};
  for (const Cells& row : rows)
    for (std::size_t i = 0; i < width.size(); ++i) width[i] = std::max(width[i], row[i].size());
  const std::size_t whole = width[0] + width[1] + width[2] + 6;
  std::string text = fmt::format("Model: \"{}\"\n{}\n", model, std::string(whole, '_'));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format(" {:<{}}  {:<{}}  {:>{}}\n", rows[i][0], width[0], rows[i][1], width[1], rows[i][2], width[2]);
    if (i == 0) text += std::string(whole, '=') + "\n";
  }
  text += std::string(whole, '=') + "\n";
  for (const std::string& line : totals) text += line + "\n";
  return text + std::string(whole, '_') + "\n";
}

}  // namespace

std::string Trainer::summary(std::initializer_list<nn::InputSpec> samples) {
  const RandomState random = random_state();  // making a model for the table must not change the random state
  const bool has_model = impl_->strategy && !impl_->is_server();
  const std::unique_ptr<nn::Module> made = has_model ? nullptr : impl_->make_model();
  set_random_state(random);
  if (!has_model && !made)
    throw InvalidArgument("Trainer::summary: the function that makes the model returned no module");
  nn::Module& model = made ? *made : impl_->strategy->model();

  std::vector<nn::InputSpec> inputs;
  for (const nn::InputSpec& sample : samples) {
    std::vector<std::int64_t> extents = {1};
    extents.insert(extents.end(), sample.shape.extents().begin(), sample.shape.extents().end());
    inputs.push_back({Shape(extents), sample.dtype});
  }
  std::map<const nn::Module*, std::string> outputs;
  nn::observe_forward(model, inputs,
                      [&](const nn::Module& seen, std::span<const Tensor>, std::span<const Tensor> results) {
                        std::string& text = outputs[&seen];
                        text.clear();
                        for (const Tensor& result : results) text += (text.empty() ? "" : ", ") + shape_text(result);
                      });

  std::vector<Cells> rows = {{"Layer (type)", "Output Shape", "Param #"}};
  const auto add_row = [&](const std::string& name, const nn::Module& part) {
    const auto output = outputs.find(&part);
    rows.push_back({fmt::format("{} ({})", name, part.kind()), output == outputs.end() ? "-" : output->second,
                    nn::with_commas(count_of(part))});
  };
  for (const auto& [name, child] : model.children()) add_row(name, *child);
  if (model.children().empty()) add_row("model", model);

  Size trainable, frozen;
  for (const NamedTensor& parameter : model.named_parameters())
    (requires_grad(parameter.tensor) ? trainable : frozen).add(parameter.tensor);
  for (const NamedTensor& buffer : model.named_buffers()) frozen.add(buffer.tensor);
  const Size total{trainable.count + frozen.count, trainable.bytes + frozen.bytes};
  return render(model.kind(), rows,
                {"Total params: " + total.text(), "Trainable params: " + trainable.text(),
                 "Non-trainable params: " + frozen.text()});
}

}  // namespace lockstep::train
