#include "lockstep/train/evaluate.h"

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"

namespace lockstep {

namespace {

// A module evaluates while one lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(nn::Module& model) : model_(model), before_(model.is_training()) { model_.train(false); }
  ~EvaluationMode() { model_.train(before_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  nn::Module& model_;
  bool before_;
};

}  // namespace

std::int64_t evaluate(const std::function<Tensor(const Tensor& inputs)>& forward, const data::Dataset& dataset,
                      std::initializer_list<Metric*> metrics, const EvaluateOptions& options) {
  if (options.batch_size < 1) throw InvalidArgument("evaluate: batch_size {} must be at least 1", options.batch_size);
  const NoGrad no_grad;
  const auto group = options.group ? options.group : default_process_group();
  for (Metric* const metric : metrics) metric->reset();
  data::DistributedSampler sampler(dataset.size(), group ? group->place() : Place{},
                                   {.shuffle = false, .remainder = data::Remainder::kExact});
  for (auto& [inputs, targets] : data::DataLoader(dataset, sampler, {.batch_size = options.batch_size, .device = options.device})) {
    const Tensor outputs = cast(forward(inputs), DType::kFloat32).to(cpu_device()), wanted = targets.to(cpu_device());
    for (Metric* const metric : metrics) metric->update(outputs, wanted);
  }
  reduce_metrics({metrics.begin(), metrics.size()}, group.get());
  return dataset.size();
}

std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::initializer_list<Metric*> metrics,
                      const EvaluateOptions& options) {
  const EvaluationMode mode(model);
  return evaluate([&](const Tensor& inputs) { return model.forward(inputs); }, dataset, metrics, options);
}

}  // namespace lockstep
