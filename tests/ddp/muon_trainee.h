// A model of four matrices trained by Muon with DDP, plainly or with ZeroRedundancyOptimizer; biases have AdamW.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/muon.h"
#include "lockstep/tensor/random.h"
#include "tests/support/in_mib.h"

namespace lockstep::testing {

struct MuonNet : nn::Sequential {
  explicit MuonNet(bool has_biases) {
    append_named<nn::Linear>("a", 5, 13, nn::LinearLayerOptions{.bias = has_biases});
    append_named<nn::Linear>("b", 13, 13, nn::LinearLayerOptions{.bias = has_biases});
    append_named<nn::Linear>("c", 13, 7, nn::LinearLayerOptions{.bias = has_biases});
    append_named<nn::Linear>("d", 7, 3, nn::LinearLayerOptions{.bias = has_biases});
  }
  bool leaves_b = false;
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (std::size_t i = 0; i < 4; ++i)
      if (i != 1 || !leaves_b) y = relu((*children()[i].second)(y));
    return y;
  }
};

struct MuonTrainee {
  MuonTrainee(const std::shared_ptr<ProcessGroup>& group, bool is_zero, bool has_biases,
              const DistributedDataParallelOptions& options = {.bucket_cap_mb = {in_mib(64), in_mib(512)}})
      : net((manual_seed(3), has_biases)), ddp(net, group, options) {
    std::vector<NamedTensor> matrices = ddp.parameters(), biases;
    for (const NamedTensor& each : matrices)
      if (each.tensor.shape().dims() == 1) biases.push_back(each);
    std::erase_if(matrices, [](const NamedTensor& each) { return each.tensor.shape().dims() == 1; });
    muon = std::make_unique<optim::Muon>(matrices, optim::MuonOptions{.lr = 0.02F});
    if (has_biases) adamw = std::make_unique<optim::AdamW>(biases);
    if (is_zero) zero = std::make_unique<ZeroRedundancyOptimizer>(ddp, *muon);
  }

  // Samples differ between ranks.
  void backward(int step) {
    std::vector<float> values(4 * 5);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          std::sin(static_cast<float>(i * 7 + 13) * 0.1F * static_cast<float>(step * 3 + ddp.group().rank() + 1));
    const Tensor outputs = ddp(Tensor::from<float>(values, {4, 5}));
    mean(outputs * outputs + outputs).backward();
  }
  void make_steps() {
    muon->step();
    if (adamw) adamw->step();
  }
  void run_step(int step) {
    muon->set_lr(muon->lr() * 0.97F);
    muon->zero_grad();
    if (adamw) adamw->zero_grad();
    if (gathers) {
      const auto local = ddp.no_sync();
      backward(step + 100);
    }
    backward(step);
    make_steps();
  }
  void run(int steps) {
    for (int step = 0; step < steps; ++step) run_step(step);
  }

  std::string bits() const { return hash_of(net.named_parameters()); }

  bool gathers = false;
  MuonNet net;
  DistributedDataParallel ddp;
  std::unique_ptr<optim::Muon> muon;
  std::unique_ptr<optim::AdamW> adamw;
  std::unique_ptr<ZeroRedundancyOptimizer> zero;
};

}  // namespace lockstep::testing
