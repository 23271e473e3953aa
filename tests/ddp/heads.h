// Modules with scalar weights whose gradients are their inputs, so that sums and averages are exact.
#pragma once

#include <string>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/module.h"

namespace lockstep::testing {

// x times trunk, and the sum of that over the heads in use. With weights of 1, the gradient of a head is x, and that of
// trunk is x times their number.
struct Heads : nn::Module {
  std::vector<Tensor> heads;
  Tensor trunk = Tensor::full({1, 1}, 1);
  std::vector<std::size_t> use;  // empty: the result depends on no weight
  explicit Heads(std::size_t count = 3) : heads(count) {
    add_parameter("trunk", trunk);
    for (std::size_t h = 0; h < count; ++h) {
      heads[h] = Tensor::full({1, 1}, 1);
      add_parameter("head" + std::to_string(h), heads[h]);
      use.push_back(h);
    }
  }
  Tensor forward(const Tensor& x) override {
    if (use.empty()) return scale(x, 1);
    const Tensor inner = linear(x, trunk, Tensor());
    Tensor sum = linear(inner, heads[use[0]], Tensor());
    for (std::size_t i = 1; i < use.size(); ++i) sum = sum + linear(inner, heads[use[i]], Tensor());
    return sum;
  }
};

// The loss of the input {{x}}. Set input_wants_grad if no weight requires a gradient, so that there is something to
// differentiate.
inline Tensor heads_loss(DistributedDataParallel& ddp, float x, bool input_wants_grad = false) {
  const Tensor input = Tensor::full({1, 1}, x);
  if (input_wants_grad) require_grad(input);
  return reshape(ddp(input), {});
}
inline float gradient_of(const Tensor& leaf) { return grad(leaf).item(); }
inline void clear_gradients(DistributedDataParallel& ddp) {
  for (const NamedTensor& parameter : ddp.parameters()) clear_grad(parameter.tensor);
}

// The parameters of each bucket.
using Buckets = std::vector<std::vector<std::string>>;
inline Buckets buckets_of(const DistributedDataParallel& ddp) {
  Buckets buckets;
  for (const BucketLayout& layout : ddp.reducer().buckets()) {
    std::vector<std::string>& names = buckets.emplace_back();
    for (const Slot& slot : layout.slots) names.push_back(ddp.reducer().gradients()[slot.gradient].name);
  }
  return buckets;
}

// Rank r's input is 2^r: sums and averages are exact and differ from each rank's own value.
inline float power_of_rank(const ProcessGroup& group) { return static_cast<float>(1 << group.rank()); }
inline float average_of_powers(int ranks) { return static_cast<float>((1 << ranks) - 1) / static_cast<float>(ranks); }

}  // namespace lockstep::testing
