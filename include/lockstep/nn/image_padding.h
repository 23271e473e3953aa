// Layers that put a border around images and sequences; see autograd/image_padding.h. The sides of Padding are top,
// left, bottom, right; PyTorch lists left, right, top, bottom.
#pragma once

#include "lockstep/autograd/image_padding.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// The common part of the classes below.
template <PaddingMode mode> class Pad2d : public Module {
 public:
  explicit Pad2d(const Padding& padding) : padding_(padding) {}
  Tensor forward(const Tensor& x) override { return pad2d(x, padding_, mode); }
  std::string extra_repr() const override;

 private:
  Padding padding_;
};
template <PaddingMode mode> class Pad1d : public Module {
 public:
  explicit Pad1d(const Padding1d& padding) : padding_(padding) {}
  Tensor forward(const Tensor& x) override { return pad1d(x, padding_, mode); }
  std::string extra_repr() const override;

 private:
  Padding1d padding_;
};

class ZeroPad2d : public Pad2d<PaddingMode::kZeros> {
 public:
  using Pad2d::Pad2d;
  std::string kind() const override { return "ZeroPad2d"; }
};
class ReflectionPad2d : public Pad2d<PaddingMode::kReflect> {
 public:
  using Pad2d::Pad2d;
  std::string kind() const override { return "ReflectionPad2d"; }
};
class ReplicationPad2d : public Pad2d<PaddingMode::kReplicate> {
 public:
  using Pad2d::Pad2d;
  std::string kind() const override { return "ReplicationPad2d"; }
};
class ZeroPad1d : public Pad1d<PaddingMode::kZeros> {
 public:
  using Pad1d::Pad1d;
  std::string kind() const override { return "ZeroPad1d"; }
};
class ReflectionPad1d : public Pad1d<PaddingMode::kReflect> {
 public:
  using Pad1d::Pad1d;
  std::string kind() const override { return "ReflectionPad1d"; }
};
class ReplicationPad1d : public Pad1d<PaddingMode::kReplicate> {
 public:
  using Pad1d::Pad1d;
  std::string kind() const override { return "ReplicationPad1d"; }
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
