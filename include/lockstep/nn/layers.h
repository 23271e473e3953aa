// Layers with parameters, and Sequential. Weights are drawn from this thread's random streams (tensor/random.h).
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct Conv2dLayerOptions {
  Size2 stride = {1, 1};
  PaddingRule padding = Padding{};
  Activation activation = Activation::kNone;
  bool bias = true;
  std::int64_t groups = 1;  // must divide in and out channels
  Size2 dilation = {1, 1};
};

// weight (out, kernel height, kernel width, in / groups) and bias are initially uniform in +-1/sqrt(fan in), as in
// PyTorch.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in_channels, std::int64_t out_channels, Size2 kernel, const Conv2dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Conv2d"; }
  std::string extra_repr() const override;
  Tensor weight, bias;  // bias is undefined if the options leave it out

 private:
  Conv2dOptions options_;
};

struct Conv1dLayerOptions {
  std::int64_t stride = 1;
  PaddingRule1d padding = Padding1d{};
  Activation activation = Activation::kNone;
  bool bias = true;
  std::int64_t groups = 1;
  std::int64_t dilation = 1;
};

// Convolution of sequences (N, L, C): weight (out, kernel, in / groups), initialised as in Conv2d.
class Conv1d : public Module {
 public:
  Conv1d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
         const Conv1dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Conv1d"; }
  std::string extra_repr() const override;
  Tensor weight, bias;

 private:
  Conv1dOptions options_;
};

struct LinearLayerOptions {
  Activation activation = Activation::kNone;
  bool bias = true;
};

// weight (out, in) and bias are initially uniform in +-1/sqrt(in), as in PyTorch.
class Linear : public Module {
 public:
  Linear(std::int64_t in_features, std::int64_t out_features, const LinearLayerOptions& options = {});
  ~Linear() override;
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Linear"; }
  std::string extra_repr() const override;
  Tensor weight, bias;

  // For nn/lora.h: a layer with low-rank matrices adds their product to the weight.
  struct LowRank;
  const LowRank* low_rank() const { return low_rank_.get(); }
  void set_low_rank(std::unique_ptr<LowRank> low_rank);  // null removes it

 private:
  Activation activation_;
  std::unique_ptr<LowRank> low_rank_;
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(Size2 window, const MaxPool2dOptions& options = {}) : window_(window), options_(options) {}
  Tensor forward(const Tensor& x) override { return max_pool2d(x, window_, options_); }
  std::string kind() const override { return "MaxPool2d"; }
  std::string extra_repr() const override;

 private:
  Size2 window_;
  MaxPool2dOptions options_;
};

class LocalResponseNorm : public Module {
 public:
  explicit LocalResponseNorm(const LrnOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return local_response_norm(x, options_); }
  std::string kind() const override { return "LocalResponseNorm"; }
  std::string extra_repr() const override;

 private:
  LrnOptions options_;
};

class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
  std::string kind() const override { return "ReLU"; }
};

class Flatten : public Module {
 public:
  Tensor forward(const Tensor& x) override { return flatten(x); }
  std::string kind() const override { return "Flatten"; }
};

// Owns its modules and runs them one after the other, each on all outputs of the previous one. Children are named "0",
// "1", ... or by the given name.
class Sequential : public Module {
 public:
  Sequential() = default;
  // From a list: Sequential net(std::make_unique<Linear>(2, 3), std::make_unique<ReLU>()). InvalidArgument for null.
  template <std::derived_from<Module>... Layers> explicit Sequential(std::unique_ptr<Layers>... layers) {
    (append_module(std::move(layers)), ...);
  }
  void append_module(std::unique_ptr<Module> layer);
  template <typename Layer, typename... Args> Layer& append(Args&&... args) {
    return append_named<Layer>(std::to_string(modules_.size()), std::forward<Args>(args)...);
  }
  template <typename Layer, typename... Args> Layer& append_named(const std::string& name, Args&&... args) {
    auto layer = std::make_unique<Layer>(std::forward<Args>(args)...);
    Layer& added = *layer;
    add(name, added);
    modules_.push_back(std::move(layer));
    return added;
  }
  Tensors forward_all(const Tensors& inputs) override;
  std::string kind() const override { return "Sequential"; }
  std::size_t size() const { return modules_.size(); }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
