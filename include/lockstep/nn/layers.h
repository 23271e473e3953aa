// Layers with parameters, and Sequential. Weights are drawn from this thread's random streams (tensor/random.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct Conv2dLayerOptions {
  Size2 stride = {1, 1};
  PaddingRule padding = Padding{};
  Activation activation = Activation::kNone;
  bool bias = true;
};

// weight (out, kernel height, kernel width, in) uniform in +-1/sqrt(fan in), bias likewise: PyTorch's defaults.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in_channels, std::int64_t out_channels, Size2 kernel, const Conv2dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Conv2d"; }
  Tensor weight, bias;  // bias is undefined when the options leave it out

 private:
  Conv2dOptions options_;
};

struct LinearLayerOptions {
  Activation activation = Activation::kNone;
  bool bias = true;
};

// weight (out, in) and bias uniform in +-1/sqrt(in): PyTorch's defaults.
class Linear : public Module {
 public:
  Linear(std::int64_t in_features, std::int64_t out_features, const LinearLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Linear"; }
  Tensor weight, bias;

 private:
  Activation activation_;
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(Size2 window, const MaxPool2dOptions& options = {}) : window_(window), options_(options) {}
  Tensor forward(const Tensor& x) override { return max_pool2d(x, window_, options_); }
  std::string kind() const override { return "MaxPool2d"; }

 private:
  Size2 window_;
  MaxPool2dOptions options_;
};

class LocalResponseNorm : public Module {
 public:
  explicit LocalResponseNorm(const LrnOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return local_response_norm(x, options_); }
  std::string kind() const override { return "LocalResponseNorm"; }

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

// Runs its modules one after the other; owns them. Children are called "0", "1", ... or by the given name.
class Sequential : public Module {
 public:
  template <typename Layer, typename... Args>
  Layer& append(Args&&... args) {
    return append_named<Layer>(std::to_string(modules_.size()), std::forward<Args>(args)...);
  }
  template <typename Layer, typename... Args>
  Layer& append_named(const std::string& name, Args&&... args) {
    auto layer = std::make_unique<Layer>(std::forward<Args>(args)...);
    Layer& added = *layer;
    add(name, added);
    modules_.push_back(std::move(layer));
    return added;
  }
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Sequential"; }
  std::size_t size() const { return modules_.size(); }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
};

}  // namespace lockstep::nn
