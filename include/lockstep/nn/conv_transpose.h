// Transposed convolutions; see autograd/conv_transpose.h.
#pragma once

#include "lockstep/autograd/conv_transpose.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct ConvTranspose2dLayerOptions {
  Size2 stride = {1, 1};
  Padding padding = {};
  Size2 output_padding = {0, 0};
  bool bias = true;
  std::int64_t groups = 1;  // must divide in and out channels
  Size2 dilation = {1, 1};
};

// (N, H, W, in) to (N, H', W', out). weight (in, kernel height, kernel width, out / groups) and bias are initially
// uniform in +-1/sqrt(out / groups * kernel height * kernel width), as in PyTorch.
class ConvTranspose2d : public Module {
 public:
  ConvTranspose2d(std::int64_t in_channels, std::int64_t out_channels, Size2 kernel,
                  const ConvTranspose2dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override { return conv_transpose2d(x, weight, bias, options_); }
  std::string kind() const override { return "ConvTranspose2d"; }
  std::string extra_repr() const override;
  Tensor weight, bias;  // bias is undefined if the options leave it out

 private:
  ConvTranspose2dOptions options_;
};

struct ConvTranspose1dLayerOptions {
  std::int64_t stride = 1;
  Padding1d padding = {};
  std::int64_t output_padding = 0;
  bool bias = true;
  std::int64_t groups = 1;
  std::int64_t dilation = 1;
};

// (N, L, in) to (N, L', out), with a weight (in, kernel, out / groups).
class ConvTranspose1d : public Module {
 public:
  ConvTranspose1d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
                  const ConvTranspose1dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override { return conv_transpose1d(x, weight, bias, options_); }
  std::string kind() const override { return "ConvTranspose1d"; }
  std::string extra_repr() const override;
  Tensor weight, bias;

 private:
  ConvTranspose1dOptions options_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
