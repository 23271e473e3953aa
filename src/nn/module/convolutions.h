// Convolution weights in state dicts.
#pragma once

#include <set>
#include <string>

#include "lockstep/autograd/shapes.h"
#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/layers.h"

namespace lockstep::nn {

inline void collect_convolutions(const Module& module, const std::string& path, std::set<std::string>& names) {
  if (dynamic_cast<const Conv1d*>(&module) != nullptr || dynamic_cast<const ConvTranspose1d*>(&module) != nullptr)
    names.insert(path + "weight");
  for (const auto& [name, child] : module.children()) collect_convolutions(*child, path + name + ".", names);
}

// The names of convolution weights: those of the layers, and all with two spatial dimensions in a user's own module.
inline std::set<std::string> convolutions_of(const Module& module) {
  std::set<std::string> names;
  collect_convolutions(module, "", names);
  for (const auto& [name, tensor] : module.named_parameters())
    if (tensor.defined() && tensor.shape().dims() == 4) names.insert(name);
  return names;
}

// (out, in, height, width) as (out, height, width, in); likewise with one dimension, and with `in` and `out` exchanged
// for transposed convolutions.
inline Tensor channels_last(const Tensor& weight) {
  return weight.shape().dims() == 4 ? permute(weight, {0, 2, 3, 1}) : permute(weight, {0, 2, 1});
}
// The reverse.
inline Tensor channels_first(const Tensor& weight) {
  return weight.shape().dims() == 4 ? permute(weight, {0, 3, 1, 2}) : permute(weight, {0, 2, 1});
}

}  // namespace lockstep::nn
