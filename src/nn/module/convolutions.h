// Convolution weights in state dicts.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/autograd/shapes.h"
#include "lockstep/nn/conv3d.h"
#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/layers.h"

namespace lockstep::nn {

inline void collect_convolutions(const Module& module, const std::string& path, std::set<std::string>& names) {
  if (dynamic_cast<const Conv1d*>(&module) != nullptr || dynamic_cast<const ConvTranspose1d*>(&module) != nullptr ||
      dynamic_cast<const Conv3d*>(&module) != nullptr)
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

// (out, in, height, width) as (out, height, width, in); likewise with one or three dimensions, and with `in` and `out`
// exchanged for transposed convolutions.
inline Tensor channels_last(const Tensor& weight) {
  std::vector<int> order = {0};
  for (int dim = 2; dim < static_cast<int>(weight.shape().dims()); ++dim) order.push_back(dim);
  order.push_back(1);
  return permute(weight, order);
}
// The reverse.
inline Tensor channels_first(const Tensor& weight) {
  const int last = static_cast<int>(weight.shape().dims()) - 1;
  std::vector<int> order = {0, last};
  for (int dim = 1; dim < last; ++dim) order.push_back(dim);
  return permute(weight, order);
}

}  // namespace lockstep::nn
