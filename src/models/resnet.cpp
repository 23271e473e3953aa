#include "lockstep/models/resnet.h"

#include "lockstep/nn/init.h"

namespace lockstep::models {

namespace {

constexpr std::int64_t kExpansion = 4;  // of a bottleneck

std::int64_t outputs_of(std::int64_t width, const ResNetConfig& config) {
  return config.bottleneck ? width * kExpansion : width;
}

nn::Conv2dLayerOptions without_bias(std::int64_t stride, std::int64_t padding) {
  return {.stride = {stride, stride}, .padding = Padding{padding, padding}, .bias = false};
}

}  // namespace

// torchvision puts a bottleneck's stride into its 3x3 convolution ("ResNet v1.5").
ResNetBlock::ResNetBlock(std::int64_t in, std::int64_t width, std::int64_t stride, const ResNetConfig& config)
    : conv1(in, width, config.bottleneck ? Size2{1, 1} : Size2{3, 3},
            config.bottleneck ? without_bias(1, 0) : without_bias(stride, 1)),
      conv2(width, width, {3, 3}, without_bias(config.bottleneck ? stride : 1, 1)),
      bn1(width, {.activation = Activation::kReLU}),
      bn2(width, {.activation = config.bottleneck ? Activation::kReLU : Activation::kNone}) {
  const std::int64_t out = outputs_of(width, config);
  add("conv1", conv1), add("bn1", bn1), add("conv2", conv2), add("bn2", bn2);
  if (config.bottleneck) {
    conv3 = std::make_unique<nn::Conv2d>(width, out, Size2{1, 1}, without_bias(1, 0));
    bn3 = std::make_unique<nn::BatchNorm>(out);
    add("conv3", *conv3), add("bn3", *bn3);
  }
  if (config.zero_init_residual) (bn3 ? *bn3 : bn2).weight.fill(0);
  if (in != out || stride != 1) {
    downsample = std::make_unique<nn::Sequential>();
    downsample->append<nn::Conv2d>(in, out, Size2{1, 1}, without_bias(stride, 0));
    downsample->append<nn::BatchNorm>(out);
    add("downsample", *downsample);
  }
}

Tensor ResNetBlock::forward(const Tensor& x) {
  Tensor y = bn2(conv2(bn1(conv1(x))));
  if (conv3) y = (*bn3)((*conv3)(y));
  return relu(y + (downsample ? (*downsample)(x) : x));
}

ResNet::ResNet(const ResNetConfig& config)
    : conv1(3, 64, {7, 7}, without_bias(2, 3)),
      bn1(64, {.activation = Activation::kReLU}),
      fc(outputs_of(512, config), config.classes),
      config_(config),
      max_pool_({3, 3}, {.stride = {2, 2}, .padding = Padding{1, 1}}) {
  add("conv1", conv1), add("bn1", bn1), add("maxpool", max_pool_);
  fill(layer1, config.blocks[0], 64, 1), add("layer1", layer1);
  fill(layer2, config.blocks[1], 128, 2), add("layer2", layer2);
  fill(layer3, config.blocks[2], 256, 2), add("layer3", layer3);
  fill(layer4, config.blocks[3], 512, 2), add("layer4", layer4);
  add("fc", fc);
  apply([](nn::Module& module) {
    if (auto* const layer = dynamic_cast<nn::Conv2d*>(&module))
      nn::init::kaiming_normal(layer->weight, {.mode = nn::FanMode::kFanOut, .nonlinearity = nn::Nonlinearity::kReLU});
  });
}

void ResNet::fill(nn::ModuleList<ResNetBlock>& stage, std::int64_t blocks, std::int64_t width, std::int64_t stride) {
  for (std::int64_t i = 0; i < blocks; ++i) {
    stage.append(channels_, width, i == 0 ? stride : 1, config_);
    channels_ = outputs_of(width, config_);
  }
}

Tensor ResNet::features(const Tensor& images) {
  Tensor x = max_pool_(bn1(conv1(images)));
  for (nn::ModuleList<ResNetBlock>* const stage : {&layer1, &layer2, &layer3, &layer4})
    for (ResNetBlock& block : *stage) x = block(x);
  return flatten(global_avg_pool2d(x));
}

Tensor ResNet::forward(const Tensor& images) { return fc(features(images)); }

}  // namespace lockstep::models
