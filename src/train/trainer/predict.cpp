// Each rank computes the outputs of its share, positions r, r + n, r + 2n, ..., and all ranks gather them.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/train/evaluate.h"
#include "src/nn/module/evaluation_mode.h"

namespace lockstep::train {

namespace {

// Concatenated rows of outputs.
struct Outputs {
  std::optional<std::vector<std::int64_t>> row;  // shape of a sample's output; nullopt before the first one
  std::vector<float> values;

  void append(const Tensor& outputs, std::int64_t samples) {
    const auto extents = outputs.shape().extents();
    if (extents.empty() || extents[0] != samples)
      throw InvalidArgument("predict: the model returned {} for {} samples: one row per sample is needed",
                            outputs.shape().text(), samples);
    const std::vector<std::int64_t> of_sample(extents.begin() + 1, extents.end());
    if (row && *row != of_sample)
      throw InvalidArgument("predict: got an output of shape {} per sample after others of {}: all must be the same",
                            Shape(of_sample).text(), Shape(*row).text());
    row = of_sample;
    values.insert(values.end(), outputs.span<float>().begin(), outputs.span<float>().end());
  }
};

Outputs outputs_of_share(nn::Module& model, const data::Dataset& dataset, const data::DistributedSampler& sampler,
                         const EvaluateOptions& options) {
  const nn::EvaluationMode mode(model);
  const NoGrad no_grad;
  Outputs outputs;
  const data::DataLoaderOptions loading{
      .batch_size = options.batch_size, .device = options.device, .collate = options.collate};
  for (const data::Batch& batch : data::DataLoader(dataset, sampler, loading))
    outputs.append(cast(model(batch.inputs()), DType::kFloat32).to(cpu_device()), batch.inputs().shape()[0]);
  return outputs;
}

Tensor gather(const Outputs& mine, std::int64_t samples, ProcessGroup& group) {
  // Rank 0 always has a sample, and sends the shape of its row to the others.
  const auto row = broadcast_object(group, group.rank() == 0 ? nlohmann::json(*mine.row) : nlohmann::json(), 0)
                       .get<std::vector<std::int64_t>>();
  const auto width = static_cast<std::size_t>(Shape(row).count()), ranks = static_cast<std::size_t>(group.world_size());
  std::vector<std::size_t> counts(ranks), begins(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    counts[rank] =
        width *
        ((static_cast<std::size_t>(samples) - std::min(rank, static_cast<std::size_t>(samples)) + ranks - 1) / ranks);
    begins[rank] = rank == 0 ? 0 : begins[rank - 1] + counts[rank - 1];
  }
  if (mine.values.size() != counts[static_cast<std::size_t>(group.rank())])
    throw InvalidArgument(
        "predict: rank {}: got {} values, expected {}: the outputs of all ranks must have rows of shape {}",
        group.rank(), mine.values.size(), counts[static_cast<std::size_t>(group.rank())], Shape(row).text());
  std::vector<float> by_rank(static_cast<std::size_t>(samples) * width);
  group.all_gather(mine.values.data(), by_rank.data(), counts, DType::kFloat32);
  std::vector<std::int64_t> extents = {samples};
  extents.insert(extents.end(), row.begin(), row.end());
  const Tensor all = Tensor::empty(Shape(extents), DType::kFloat32, cpu_device());
  for (std::size_t sample = 0; sample < static_cast<std::size_t>(samples); ++sample)
    std::copy_n(by_rank.data() + begins[sample % ranks] + sample / ranks * width, width,
                all.data<float>() + sample * width);
  return all;
}

}  // namespace

Tensor predict(nn::Module& model, const data::Dataset& dataset, const EvaluateOptions& options) {
  const auto group = options.group ? options.group : default_process_group();
  return abort_on_error(group, [&] {
    if (options.batch_size < 1)
      throw InvalidArgument("predict: got batch_size {}, expected at least 1", options.batch_size);
    if (dataset.size() < 1) throw InvalidArgument("predict: the data set is empty: at least one sample is needed");
    const data::DistributedSampler sampler(dataset.size(), group ? group->place() : Place{},
                                           {.shuffle = false, .remainder = data::Remainder::kExact});
    sync_buffers(model, group);
    const Outputs mine = outputs_of_share(model, dataset, sampler, options);
    if (group && group->world_size() > 1) return gather(mine, dataset.size(), *group);
    std::vector<std::int64_t> extents = {dataset.size()};
    extents.insert(extents.end(), mine.row->begin(), mine.row->end());
    return Tensor::from<float>(mine.values, Shape(extents), cpu_device());
  });
}

}  // namespace lockstep::train
