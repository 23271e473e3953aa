// Pooling layers except MaxPool2d (layers.h); see autograd/pooling.h.
#pragma once

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(Size2 window, const AvgPool2dOptions& options = {}) : window_(window), options_(options) {}
  Tensor forward(const Tensor& x) override { return avg_pool2d(x, window_, options_); }
  std::string kind() const override { return "AvgPool2d"; }
  std::string extra_repr() const override;

 private:
  Size2 window_;
  AvgPool2dOptions options_;
};

// (N, H, W, C) to (N, C).
class GlobalAvgPool2d : public Module {
 public:
  Tensor forward(const Tensor& x) override { return global_avg_pool2d(x); }
  std::string kind() const override { return "GlobalAvgPool2d"; }
};

class MaxPool1d : public Module {
 public:
  explicit MaxPool1d(std::int64_t window, const MaxPool1dOptions& options = {}) : window_(window), options_(options) {}
  Tensor forward(const Tensor& x) override { return max_pool1d(x, window_, options_); }
  std::string kind() const override { return "MaxPool1d"; }
  std::string extra_repr() const override;

 private:
  std::int64_t window_;
  MaxPool1dOptions options_;
};

class AvgPool1d : public Module {
 public:
  explicit AvgPool1d(std::int64_t window, const AvgPool1dOptions& options = {}) : window_(window), options_(options) {}
  Tensor forward(const Tensor& x) override { return avg_pool1d(x, window_, options_); }
  std::string kind() const override { return "AvgPool1d"; }
  std::string extra_repr() const override;

 private:
  std::int64_t window_;
  AvgPool1dOptions options_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
