// ResNet-18 for images of 32x32 pixels, of LibTorch's modules alone: plain PyTorch, as any C++ program has it.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace libtorch_resnet18 {

namespace nn = torch::nn;

inline nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t kernel, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// Two convolutions and a way around them (He et al. 2015, figure 2).
struct BlockImpl : nn::Module {
  nn::Conv2d first, second;
  nn::BatchNorm2d first_norm, second_norm;
  nn::Sequential shortcut;
  BlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride)
      : first(convolution(from, to, 3, stride)), second(convolution(to, to, 3, 1)), first_norm(to), second_norm(to) {
    if (stride != 1 || from != to) {
      shortcut->push_back(convolution(from, to, 1, stride));
      shortcut->push_back(nn::BatchNorm2d(to));
    }
    register_module("conv1", first), register_module("bn1", first_norm);
    register_module("conv2", second), register_module("bn2", second_norm);
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = second_norm(second(torch::relu(first_norm(first(x)))));
    return torch::relu(y + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }
};
TORCH_MODULE(Block);

struct ResNet18Impl : nn::Module {
  nn::Conv2d stem = convolution(3, 64, 3, 1);
  nn::BatchNorm2d norm{64};
  nn::Sequential blocks;
  nn::Linear out{512, 10};
  ResNet18Impl() {
    std::int64_t from = 64;
    for (const std::int64_t to : {64, 128, 256, 512})
      for (const bool is_first : {true, false}) {
        blocks->push_back(Block(from, to, is_first && to != 64 ? 2 : 1));
        from = to;
      }
    register_module("conv1", stem), register_module("bn1", norm);
    register_module("blocks", blocks), register_module("fc", out);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor y = blocks->forward(torch::relu(norm(stem(images))));
    return out(y.mean({2, 3}));
  }
};
TORCH_MODULE(ResNet18);

}  // namespace libtorch_resnet18
