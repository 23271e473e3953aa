// A convolution of Lockstep, forward and backward, as a hash of its bits.
#pragma once

#include <cmath>
#include <string>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/device.h"
#include "lockstep/nn/layers.h"

namespace lockstep::testing {

inline void fill_with_sines(const Tensor& tensor) {
  float at = 0;
  for (float& value : tensor.span<float>()) value = 0.1F * std::sin(at++);
}

inline std::string hash_of_our_convolution() {
  nn::Conv2d conv(16, 32, 3, {.padding = 1});
  conv.to(cpu_device());
  for (const auto& [name, parameter] : conv.named_parameters()) fill_with_sines(parameter);
  const Tensor x = Tensor::empty({8, 20, 20, 16}, DType::kFloat32, cpu_device());
  fill_with_sines(x);
  const Tensor y = conv(x);
  sum(y * y).backward();
  crypto::Sha256 hash;
  hash.update({y.buffer().data(), y.bytes()});
  for (const auto& [name, parameter] : conv.named_parameters())
    hash.update({grad(parameter).buffer().data(), grad(parameter).bytes()});
  return crypto::hex(hash.finish());
}

}  // namespace lockstep::testing
