// Recurrent networks: nn::LSTM and nn::GRU, with the parameters of PyTorch's modules and their names. See
// autograd/recurrent.h for the formulas. Samples come first, (N, T, I): PyTorch's batch_first.
#pragma once

#include <string>
#include <vector>

#include "lockstep/autograd/recurrent.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct RecurrentLayerOptions {
  std::int64_t num_layers = 1;  // each reads the output of the one before
  bool bidirectional = false;  // a second layer of each reads from the last step to the first; outputs are concatenated
  bool bias = true;
  float dropout = 0;  // between the layers, while training
};

// Where a call begins, and where its samples end.
struct RecurrentStart {
  Tensor h = {}, c = {};       // (layers * directions, N, H); undefined: 0. Only LSTM has c
  SampleLengths lengths = {};  // see RecurrentOptions
};

// The parameters: weight_ih_l0 (G H, I), weight_hh_l0 (G H, H), bias_ih_l0, bias_hh_l0 (G H); the same with l1, l2, ..,
// whose I is H * directions; and with _reverse for the second direction. All are initially uniform in +-1/sqrt(H).
class RecurrentModule : public Module {
 public:
  std::string extra_repr() const override;
  const RecurrentWeights& weights(std::int64_t layer, bool reversed = false) const;

 protected:
  RecurrentModule(const char* kind, std::int64_t gates, std::int64_t input_size, std::int64_t hidden_size,
                  const RecurrentLayerOptions& options);
  // The inputs of forward_all(), after x.
  RecurrentStart start_of(const Tensors& inputs, bool has_c) const;
  void check_x(const Tensor& x) const;
  void check_state(const char* what, const Tensor& state, std::int64_t samples) const;
  std::int64_t directions() const { return options_.bidirectional ? 2 : 1; }
  // Calls layer(number, x (T, N, I), weights, reversed), which returns the output (T, N, H), for all layers. Returns
  // the output of the last ones, (N, T, H * directions).
  template <typename Layer> Tensor run_layers(const Tensor& x, Layer&& layer) const;

 private:
  const char* kind_;
  std::int64_t input_size_, hidden_size_;
  RecurrentLayerOptions options_;
  std::vector<RecurrentWeights> weights_;  // layer after layer, each with its directions
};

// net(x) returns the output (N, T, H * directions). net(Tensors{x}), with h and c after x if they are given and then
// the lengths (N), int64, returns the output, h and c, (layers * directions, N, H) each.
class LSTM : public RecurrentModule {
 public:
  LSTM(std::int64_t input_size, std::int64_t hidden_size, const RecurrentLayerOptions& options = {});
  Tensor forward(const Tensor& x) override { return run(x).output; }
  Tensors forward_all(const Tensors& inputs) override;
  // The same, with names; LstmResult's tensors have the shapes above.
  LstmResult run(const Tensor& x, const RecurrentStart& start = {}) const;
  std::string kind() const override { return "LSTM"; }
};

// Likewise without c.
class GRU : public RecurrentModule {
 public:
  GRU(std::int64_t input_size, std::int64_t hidden_size, const RecurrentLayerOptions& options = {});
  Tensor forward(const Tensor& x) override { return run(x).output; }
  Tensors forward_all(const Tensors& inputs) override;
  GruResult run(const Tensor& x, const RecurrentStart& start = {}) const;
  std::string kind() const override { return "GRU"; }
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
