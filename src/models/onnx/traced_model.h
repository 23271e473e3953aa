// The operators of a module, from traces of two forward passes over batches of different sizes and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/nn/module.h"

namespace lockstep::onnx {

// per_sample * N + fixed, for N samples.
struct Extent {
  std::int64_t per_sample = 0, fixed = 0;
  bool is_static() const { return per_sample == 0; }
  bool operator==(const Extent&) const = default;
};
using Extents = std::vector<Extent>;

// The sizes of the two batches.
struct BatchSizes {
  std::int64_t first = 0, second = 0;
};

// A tensor of the program in both passes, and where it comes from.
struct Operand {
  enum class Origin { kUndefined, kInput, kResult, kConstant };
  Origin origin = Origin::kUndefined;
  std::size_t index = 0;   // of the module's input, or of the step
  std::size_t output = 0;  // of the step: 0 is its result, 1 the indices that it saves
  Tensor first, second;
};

struct TracedStep {
  std::string op, path;  // the operator's name, and the module that called it, "" for the outermost
  Attributes first, second;
  std::vector<Operand> inputs, saved;
  Tensor first_result, second_result;
  // "'linear' in module 'fc' (result (8, 10))"
  std::string text() const;
};

struct TracedModel {
  BatchSizes sizes;
  Tensors first_inputs, second_inputs;
  std::vector<TracedStep> steps;  // those on which the outputs depend
  std::vector<Operand> outputs;
};

// Throws InvalidArgument as export_onnx() does, for all that two traces show.
TracedModel trace_model(nn::Module& module, const Tensors& examples);

// The extents of one value in both passes. Throws InvalidArgument that begins with `what` if they follow neither rule:
// c * N, N + c or c.
Extents extents_of(const std::string& what, const Shape& first, const Shape& second, const BatchSizes& sizes);

}  // namespace lockstep::onnx
