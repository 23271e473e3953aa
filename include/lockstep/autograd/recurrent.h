// Recurrent layers: LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014), with the formulas and the order of
// gates of PyTorch.
//
// Steps come first, (T, N, I), so that each step is one piece of memory; nn::LSTM takes (N, T, I). The products of all
// steps with the input are one matrix product, and backward through time is one node for each layer and direction.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// For H values of state and G gates: 4 (input, forget, cell, output) for LSTM, 3 (reset, update, new) for GRU.
struct RecurrentWeights {
  Tensor weight_ih;         // (G H, I)
  Tensor weight_hh;         // (G H, H)
  Tensor bias_ih, bias_hh;  // (G H) each, or both undefined
};

// The numbers of valid steps of padded samples, each in 0 .. T. Empty: all have T.
class SampleLengths {
 public:
  SampleLengths() = default;
  SampleLengths(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  // int64 (N). The values are copied to the host, which blocks if they are on a GPU.
  SampleLengths(const Tensor& lengths);

  bool empty() const { return lengths_.empty(); }
  const std::vector<std::int64_t>& values() const { return lengths_; }
  // Throws InvalidArgument that names the operation, unless there are none or one for each sample, all in 0 .. steps.
  void check(const char* operation, std::int64_t samples, std::int64_t steps) const;
  // (steps, samples, 1), uint8: whether a step is valid.
  Tensor valid_steps(std::int64_t steps, Device& device) const;

 private:
  std::vector<std::int64_t> lengths_;
};

struct RecurrentOptions {
  // From the last step to the first. With lengths a sample begins at its last valid step.
  bool reversed = false;
  // The output is 0 behind a sample's length, and its final state is that of its last valid step (the first one if
  // reversed); without any, the initial state. What x holds behind it is not read: it may be NaN, and its gradient is
  // 0.
  SampleLengths lengths = {};
  Tensor h = {}, c = {};  // (N, H), the initial state; undefined: 0. Only LSTM has c
};

// output (T, N, H); h and c (N, H), the state after the last step.
struct LstmResult {
  Tensor output, h, c;
};
struct GruResult {
  Tensor output, h;
};

// x (T, N, I), T at least 1. A layer in one direction:
//   LSTM: i, f, o = sigmoid, g = tanh of W_ih x + b_ih + W_hh h + b_hh; c' = f c + i g; h' = o tanh(c')
//   GRU: r, z = sigmoid of the same; n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h' = (1 - z) n + z h
// Under an AutoCast they compute in 16 bits; c stays float32 between the steps. Throws InvalidArgument that names the
// mismatch.
LstmResult lstm_layer(const Tensor& x, const RecurrentWeights& weights, const RecurrentOptions& options = {});
GruResult gru_layer(const Tensor& x, const RecurrentWeights& weights, const RecurrentOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop
