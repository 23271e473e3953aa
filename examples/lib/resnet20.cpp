#include "examples/lib/resnet20.h"

#include <fmt/format.h>

#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/pooling.h"

namespace lockstep::examples {

namespace {

nn::Conv2dLayerOptions plain(std::int64_t stride) {
  return {.stride = {stride, stride}, .padding = Padding::all(1), .bias = false};
}

// Two convolutions and a shortcut without parameters (option A): a stride subsamples it, and zeros fill the new
// channels.
struct Residual : nn::Module {
  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d norm1, norm2;
  std::int64_t stride, extra;
  Residual(std::int64_t inside, std::int64_t outside)
      : conv1(inside, outside, {3, 3}, plain(outside / inside)),
        conv2(outside, outside, {3, 3}, plain(1)),
        norm1(outside, {.activation = Activation::kReLU}),
        norm2(outside),
        stride(outside / inside),
        extra(outside - inside) {
    add("conv1", conv1), add("norm1", norm1), add("conv2", conv2), add("norm2", norm2);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = norm2(conv2(norm1(conv1(x))));
    if (stride == 1) return relu(y + x);
    const Range all, some{.step = stride};
    return relu(y + pad(slice(x, {all, some, some}), {{0, 0}, {0, 0}, {0, 0}, {extra / 2, extra / 2}}));
  }
  std::string kind() const override { return "Residual"; }
};

struct ResNet20 : nn::Sequential {
  ResNet20() {
    append_named<nn::Conv2d>("stem", 3, 16, Size2{3, 3}, plain(1));
    append_named<nn::BatchNorm2d>("norm", 16, nn::BatchNormLayerOptions{.activation = Activation::kReLU});
    std::int64_t inside = 16;
    for (const std::int64_t outside : {16, 32, 64})
      for (int block = 0; block < 3; ++block, inside = outside)
        append_named<Residual>(fmt::format("block{}_{}", outside, block), inside, outside);
    append_named<nn::GlobalAvgPool2d>("average");
    append_named<nn::Linear>("head", 64, 10);
    apply([](nn::Module& module) {  // He et al. 2015
      if (const auto* conv = dynamic_cast<nn::Conv2d*>(&module))
        nn::init::kaiming_normal(conv->weight, {.mode = nn::FanMode::kFanOut, .nonlinearity = nn::Nonlinearity::kReLU});
    });
  }
};

}  // namespace

std::unique_ptr<nn::Module> make_resnet20() { return std::make_unique<ResNet20>(); }

}  // namespace lockstep::examples
