#include "lockstep/train/device_placement.h"

#include "lockstep/core/log.h"
#include "lockstep/train/operator_log.h"

namespace lockstep::train {

namespace {

std::string extents_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape.extents()) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text.empty() ? "scalar" : text;
}

}  // namespace

void log_device_placement(const nn::Module& model) {
  for (const auto& [name, tensor] : model.state_dict()) {
    log::info("{}: {} ({} {})", name, tensor.device().name(), extents_of(tensor.shape()), name_of(tensor.dtype()));
    log_operators(tensor.device());
  }
}

void log_device_placement(Strategy& strategy) {
  log_device_placement(strategy.model());
  for (Device* device : strategy.devices()) log_operators(*device);
}

}  // namespace lockstep::train
