#include "lockstep/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "src/optim/check_options.h"

namespace lockstep::optim {

namespace {

std::pair<std::int64_t, std::int64_t> matrix_extents(const Tensor& parameter) {
  const std::int64_t rows = parameter.shape()[0];
  return {rows, rows == 0 ? 0 : parameter.count() / rows};
}

float factor_of(MuonFactor kind, std::int64_t rows, std::int64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return static_cast<float>(kind == MuonFactor::kOriginal ? std::sqrt(std::max(1.0, r / c))
                                                          : 0.2 * std::sqrt(std::max(r, c)));
}

}  // namespace

Muon::Muon(std::vector<NamedTensor> parameters, const MuonOptions& options)
    : Optimizer(std::move(parameters), {.kind = "Muon",
                                        .lr = options.lr,
                                        .weight_decay = options.weight_decay,
                                        .loss_scaler = nullptr,
                                        .states = {"momentum_buffer"},
                                        .elementwise = false,
                                        .fewest_dims = 2}),
      options_(options) {
  require_share("Muon", "momentum", options.momentum);
  require_not_negative("Muon", "eps", options.eps);
  if (options.eps == 0)
    throw InvalidArgument("Muon: got eps 0, expected a number above 0: a zero gradient is divided by it");
  if (options.iterations < 1 || options.iterations > 99)
    throw InvalidArgument("Muon: got iterations {}, expected a number from 1 to 99", options.iterations);
}

Tensor Muon::orthogonal(const Tensor& update) const {
  constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
  const bool is_tall = update.shape()[0] > update.shape()[1];
  Tensor x = is_tall ? transpose(update, 0, 1) : update;
  x = scale_by(x, 1.0f / clamp(sqrt(sum(x * x)), options_.eps));
  for (int i = 0; i < options_.iterations; ++i) {
    const Tensor products = matmul(x, x, {.transpose_b = true});
    x = scale(x, kA) + matmul(scale(products, kB) + scale(matmul(products, products), kC), x);
  }
  return is_tall ? transpose(x, 0, 1) : x;
}

void Muon::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                  Stream& stream) {
  const NoGrad no_grad;
  const AutoCast no_cast(DType::kFloat32);
  for (const UpdateTensor& tensor : tensors) {
    const auto found = std::find_if(parameters().begin(), parameters().end(), [&](const NamedTensor& parameter) {
      return parameter.tensor.data<float>() == tensor.weight;
    });
    LOCKSTEP_CHECK(found != parameters().end(), "an update has a tensor that is not a whole parameter");
    const auto [rows, columns] = matrix_extents(found->tensor);
    if (rows == 0 || columns == 0) continue;
    const Shape matrix{rows, columns};
    const Tensor change = Tensor::empty(matrix, DType::kFloat32, found->tensor.device());
    const auto read = [&](const float* values) { return InputView(values, DType::kFloat32, matrix); };
    OutputView buffer(tensor.states[0], matrix), sum = change;
    kernels.scale(read(tensor.states[0]), options_.momentum, buffer, stream);
    buffer.accumulate = true;
    kernels.scale(read(tensor.grad), 1 - options_.momentum, buffer, stream);
    kernels.scale(read(tensor.states[0]), options_.nesterov ? options_.momentum : 1, sum, stream);
    sum.accumulate = true;
    if (options_.nesterov) kernels.scale(read(tensor.grad), 1 - options_.momentum, sum, stream);
    const Tensor step = scale(orthogonal(change), factor_of(options_.factor, rows, columns));
    const UpdateTensor plain{tensor.weight, step.data<float>(), {}, tensor.count};
    kernels.sgd_step({&plain, 1}, {group, 0, false}, stream);
  }
}

}  // namespace lockstep::optim
