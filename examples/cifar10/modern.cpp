// ResNet-20 with the usual recipe of today: a cosine rate with warm-up, label smoothing, weight decay.
#include "examples/cifar10/recipe.h"
#include "examples/lib/resnet20.h"

namespace ls = lockstep;

namespace {

constexpr std::int64_t kWarmupShare = 20;  // a twentieth of all steps

ls::optim::Schedule warm_cosine(float peak, std::int64_t total_steps) {
  return ls::optim::CosineRate{.peak = peak, .total_steps = total_steps, .warmup_steps = total_steps / kWarmupShare};
}

}  // namespace

const Recipe kModern = {.name = "modern",
                        .purpose = "ResNet-20, cosine rate with warm-up, momentum 0.9, label smoothing 0.1",
                        .make_net = ls::examples::make_resnet20,
                        .augmentation = ls::data::ImageAugmentation::resnet(),
                        .peak_rate = 0.1f,
                        .generated_rate = 0.05f,
                        .momentum = 0.9f,
                        .make_rate = warm_cosine,
                        .weight_decay = 5e-4f,
                        .label_smoothing = 0.1f};
