#include "src/train/strategies/parameter_server/server/server_shard.h"

#include "lockstep/autograd/variable.h"
#include "src/optim/step_parts.h"

namespace lockstep::train {

namespace {

// Entire rows of the parameter, as a leaf of the same number of dimensions.
Tensor rows_in(const Tensor& memory, std::int64_t begin, const PlacedPiece& piece, const NamedTensor& parameter) {
  std::vector<std::int64_t> extents(parameter.tensor.shape().extents().begin(),
                                    parameter.tensor.shape().extents().end());
  extents[0] = piece.count / (parameter.tensor.count() / extents[0]);
  const Tensor rows = floats_of(memory, begin, piece.count).reshaped(Shape(extents));
  require_grad(rows);
  set_name(rows, parameter.name);
  return rows;
}

}  // namespace

ServerShard::ServerShard(ParameterServerJob& job) {
  const int own = job.tasks.own.index;
  const FloatRange& range = job.layout.servers[static_cast<std::size_t>(own)];
  weights_ = Tensor::zeros({range.count}, DType::kFloat32, cpu_device());
  std::vector<NamedTensor> parameters;
  const NamedTensor* split = nullptr;
  for (const PlacedPiece& piece : job.layout.pieces) {
    const NamedTensor& parameter = job.replica.parameters[piece.parameter];
    if (!piece.is_whole && split == nullptr) split = &parameter;
    if (piece.server != own) continue;
    const std::int64_t begin = piece.at - range.begin;
    Tensor held = parameter.tensor;
    if (piece.is_whole)
      move_into(weights_, begin, held);
    else
      held = rows_in(weights_, begin, piece, parameter);
    parameters.push_back({parameter.name, held});
    held_.push_back({held, begin, piece.flag - range.begin});
    ranges_.push_back({parameter.name, 0, piece.count});
  }
  optimizer_ = make_optimizer(kParameterServer, job.training, parameters);
  const optim::StepParts parts(*optimizer_);
  if (parts.scales_loss())
    throw InvalidArgument(
        "{}: the optimizer has a LossScaler: servers would divide by a scale of their own, and no step changes the "
        "scale of a worker's loss; compute in bfloat16, which needs no LossScaler, or use another strategy",
        kParameterServer);
  if (split != nullptr && !parts.is_elementwise())
    throw InvalidArgument(
        "{}: {} is not elementwise: the update of an element reads others of its tensor, but '{}' is split over "
        "servers (.min_shard_bytes = {}): set it to 0, or take an elementwise optimizer",
        kParameterServer, optimizer_->kind(), split->name, job.options.min_shard_bytes);
}

void ServerShard::update(const Notice& notice, const Tensor& gradients) const {
  if (notice.has_lr != 0) optimizer_->set_lr(notice.lr);
  for (const Held& held : held_) {
    clear_grad(held.tensor);
    if (gradients.data<float>()[held.flag] == 0) continue;  // no worker's backward reached it
    bind_grad(held.tensor, floats_of(gradients, held.begin, held.tensor.count()).buffer());
    mark_grad_written(held.tensor);
  }
  optimizer_->step();
}

}  // namespace lockstep::train
