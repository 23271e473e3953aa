// Convolution of volumes; see autograd/conv3d.h.
#pragma once

#include "lockstep/autograd/conv3d.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct Conv3dLayerOptions {
  Size3 stride = 1;
  Size3 padding = 0;
  Activation activation = Activation::kNone;
  bool bias = true;
  std::int64_t groups = 1;  // must divide in and out channels
  Size3 dilation = 1;
};

// (N, D, H, W, in) to (N, D', H', W', out). weight (out, kernel depth, height, width, in / groups) and bias are
// initially uniform in +-1/sqrt(fan in), as in PyTorch.
class Conv3d : public Module {
 public:
  Conv3d(std::int64_t in_channels, std::int64_t out_channels, Size3 kernel, const Conv3dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override { return conv3d(x, weight, bias, options_); }
  std::string kind() const override { return "Conv3d"; }
  std::string extra_repr() const override;
  Tensor weight, bias;  // bias is undefined if the options leave it out

 private:
  Conv3dOptions options_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
