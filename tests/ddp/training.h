// A training of one rank, for the tests of ranks that step together.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/loader.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::testing {

struct TwoLayers : nn::Module {
  nn::Linear first{4, 3}, last{3, 2};
  TwoLayers() {
    add("first", first);
    add("last", last);
  }
  Tensor forward(const Tensor& x) override { return last(first(x)); }
};

// A training of one rank. Weights do not depend on the rank.
struct RankTraining {
  explicit RankTraining(const std::shared_ptr<ProcessGroup>& all, const DistributedDataParallelOptions& options = {})
      : group(all), ddp(net, all, options), sgd(ddp.parameters(), {.lr = 0.125F}) {}
  Tensor loss(const Tensor& x) { return sum(ddp(x)); }
  Tensor loss() { return loss(Tensor::full({2, 4}, 1.F + static_cast<float>(group->rank()))); }
  void pass() {
    sgd.zero_grad();
    loss().backward();
  }
  void step() {
    pass();
    sgd.step();
  }
  bool is_odd() const { return group->rank() == 1; }  // the rank that behaves differently

  std::shared_ptr<ProcessGroup> group;
  TwoLayers net;
  DistributedDataParallel ddp;
  optim::SGD sgd;
};

struct Numbers : data::Dataset {
  std::int64_t size() const override { return 24; }
  data::Sample get(std::int64_t index, std::int64_t) const override {
    return {{Tensor::full({4}, static_cast<float>(index))}};
  }
};

}  // namespace lockstep::testing
