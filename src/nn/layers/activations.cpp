#include "lockstep/nn/activations.h"

#include <fmt/format.h>

namespace lockstep::nn {

namespace {

std::string dim_repr(int dim) { return dim == -1 ? "" : fmt::format("dim={}", dim); }

}  // namespace

std::string LeakyReLU::extra_repr() const { return fmt::format("negative_slope={}", negative_slope_); }
std::string Softmax::extra_repr() const { return dim_repr(dim_); }
std::string LogSoftmax::extra_repr() const { return dim_repr(dim_); }
std::string GLU::extra_repr() const { return dim_repr(dim_); }
std::string ELU::extra_repr() const { return alpha_ == 1 ? "" : fmt::format("alpha={}", alpha_); }
std::string Softplus::extra_repr() const {
  return beta_ == 1 && threshold_ == 20 ? "" : fmt::format("beta={}, threshold={}", beta_, threshold_);
}

PReLU::PReLU(std::int64_t channels, float initial) : weight(Tensor::full({channels}, initial)) {
  add_parameter("weight", weight);
}
std::string PReLU::extra_repr() const { return fmt::format("{}", weight.count()); }

}  // namespace lockstep::nn
