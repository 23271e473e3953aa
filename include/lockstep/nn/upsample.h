// Images of another size: Upsample and adaptive pooling; see autograd/upsample.h.
#pragma once

#include "lockstep/autograd/upsample.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

class Upsample : public Module {
 public:
  explicit Upsample(const UpsampleOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override { return upsample(x, options_); }
  std::string kind() const override { return "Upsample"; }
  std::string extra_repr() const override;

 private:
  UpsampleOptions options_;
};

class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Size2 size);
  Tensor forward(const Tensor& x) override { return adaptive_avg_pool2d(x, size_); }
  std::string kind() const override { return "AdaptiveAvgPool2d"; }
  std::string extra_repr() const override;

 private:
  Size2 size_;
};

class AdaptiveMaxPool2d : public Module {
 public:
  explicit AdaptiveMaxPool2d(Size2 size);
  Tensor forward(const Tensor& x) override { return adaptive_max_pool2d(x, size_); }
  std::string kind() const override { return "AdaptiveMaxPool2d"; }
  std::string extra_repr() const override;

 private:
  Size2 size_;
};

class AdaptiveAvgPool1d : public Module {
 public:
  explicit AdaptiveAvgPool1d(std::int64_t size);
  Tensor forward(const Tensor& x) override { return adaptive_avg_pool1d(x, size_); }
  std::string kind() const override { return "AdaptiveAvgPool1d"; }
  std::string extra_repr() const override;

 private:
  std::int64_t size_;
};

class AdaptiveMaxPool1d : public Module {
 public:
  explicit AdaptiveMaxPool1d(std::int64_t size);
  Tensor forward(const Tensor& x) override { return adaptive_max_pool1d(x, size_); }
  std::string kind() const override { return "AdaptiveMaxPool1d"; }
  std::string extra_repr() const override;

 private:
  std::int64_t size_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
