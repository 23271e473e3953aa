// A table of learned rows, looked up by index.
#pragma once

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// weight (words, width), initially normal with mean 0 and standard deviation 1, as in PyTorch; the row `padding` is 0
// and gets no gradient. Takes indices (...), int64, in [0, words), and returns (..., width).
class Embedding : public Module {
 public:
  Embedding(std::int64_t words, std::int64_t width, std::int64_t padding = kNoPadding);
  Tensor forward(const Tensor& indices) override { return embedding(weight, indices, padding_); }
  std::string kind() const override { return "Embedding"; }
  std::string extra_repr() const override;
  std::int64_t padding() const { return padding_; }  // kNoPadding: none
  Tensor weight;

 private:
  std::int64_t padding_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
