#include "lockstep/train/evaluate.h"

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "src/nn/module/evaluation_mode.h"

namespace lockstep::train {

namespace {

// `model`: its buffers are sent first; may be null.
std::int64_t evaluate_metrics(const nn::Module* model, const std::function<Tensor(const Tensor& inputs)>& forward,
                              const data::Dataset& dataset, std::span<Metric* const> metrics,
                              const EvaluateOptions& options) {
  const NoGrad no_grad;
  const auto group = options.group ? options.group : default_process_group();
  abort_on_error(group, [&] {
    if (options.batch_size < 1)
      throw InvalidArgument("evaluate: got batch_size {}, expected at least 1", options.batch_size);
    if (!forward) throw InvalidArgument("evaluate: the function that computes outputs is empty");
    for (std::size_t i = 0; i < metrics.size(); ++i)
      if (metrics[i] == nullptr) throw InvalidArgument("evaluate: metric {} of {} is null", i, metrics.size());
    for (Metric* const metric : metrics) metric->reset();
    if (model != nullptr) sync_buffers(*model, group);
    data::DistributedSampler sampler(dataset.size(), group ? group->place() : Place{},
                                     {.shuffle = false, .remainder = data::Remainder::kExact});
    const data::DataLoaderOptions loading{
        .batch_size = options.batch_size, .device = options.device, .collate = options.collate};
    for (auto& [inputs, targets] : data::DataLoader(dataset, sampler, loading)) {
      const Tensor outputs = cast(forward(inputs), DType::kFloat32).to(cpu_device()), wanted = targets.to(cpu_device());
      for (Metric* const metric : metrics) metric->update(outputs, wanted);
    }
  });
  reduce_metrics(metrics, group.get());
  return dataset.size();
}

}  // namespace

std::int64_t evaluate(const std::function<Tensor(const Tensor& inputs)>& forward, const data::Dataset& dataset,
                      std::initializer_list<Metric*> metrics, const EvaluateOptions& options) {
  return evaluate_metrics(nullptr, forward, dataset, {metrics.begin(), metrics.size()}, options);
}

std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::initializer_list<Metric*> metrics,
                      const EvaluateOptions& options) {
  return evaluate(model, dataset, std::span<Metric* const>(metrics.begin(), metrics.size()), options);
}

std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::span<Metric* const> metrics,
                      const EvaluateOptions& options) {
  const nn::EvaluationMode mode(model);
  return evaluate_metrics(
      &model, [&](const Tensor& inputs) { return model.forward(inputs); }, dataset, metrics, options);
}

}  // namespace lockstep::train
