// ResNet (He et al. 2016, "Deep Residual Learning for Image Recognition", table 1), with the names and the computation
// of torchvision's resnet18 to resnet152. Images are (N, H, W, 3).
//
//   models::ResNet net(models::ResNetConfig::resnet50());
//   models::load_pretrained(net, "resnet50.safetensors", {.names = models::torchvision_resnet_names()});
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/layers.h"

#pragma GCC visibility push(default)
namespace lockstep::models {

struct ResNetConfig {
  std::array<std::int64_t, 4> blocks = {2, 2, 2, 2};  // in each stage
  bool bottleneck = false;  // blocks of 1x1, 3x3 and 1x1 convolutions with four times the width; else of two 3x3
  std::int64_t classes = 1000;
  // Initial weights of the last norm of each block are 0, so that blocks begin as the identity (Goyal et al. 2017,
  // section 5.1).
  bool zero_init_residual = false;

  static ResNetConfig resnet18() { return {}; }
  static ResNetConfig resnet34() { return {.blocks = {3, 4, 6, 3}}; }
  static ResNetConfig resnet50() { return {.blocks = {3, 4, 6, 3}, .bottleneck = true}; }
  static ResNetConfig resnet101() { return {.blocks = {3, 4, 23, 3}, .bottleneck = true}; }
  static ResNetConfig resnet152() { return {.blocks = {3, 8, 36, 3}, .bottleneck = true}; }
};

class ResNetBlock : public nn::Module {
 public:
  ResNetBlock(std::int64_t in, std::int64_t width, std::int64_t stride, const ResNetConfig& config);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return conv3 ? "Bottleneck" : "BasicBlock"; }
  nn::Conv2d conv1, conv2;
  nn::BatchNorm bn1, bn2;
  std::unique_ptr<nn::Conv2d> conv3;  // of a bottleneck
  std::unique_ptr<nn::BatchNorm> bn3;
  std::unique_ptr<nn::Sequential> downsample;  // of a block that changes the shape
};

// Images (N, H, W, 3) to logits (N, classes).
class ResNet : public nn::Module {
 public:
  // Convolutions have He's normal initialisation (fan out).
  explicit ResNet(const ResNetConfig& config = {});
  Tensor forward(const Tensor& images) override;
  // The activations before `fc`, (N, 512) or with bottlenecks (N, 2048).
  Tensor features(const Tensor& images);
  std::string kind() const override { return "ResNet"; }
  const ResNetConfig& config() const { return config_; }
  nn::Conv2d conv1;
  nn::BatchNorm bn1;
  nn::ModuleList<ResNetBlock> layer1, layer2, layer3, layer4;
  nn::Linear fc;

 private:
  void fill(nn::ModuleList<ResNetBlock>& stage, std::int64_t blocks, std::int64_t width, std::int64_t stride);

  ResNetConfig config_;
  std::int64_t channels_ = 64;  // of the last block that was added
  nn::MaxPool2d max_pool_;
};

}  // namespace lockstep::models
#pragma GCC visibility pop
