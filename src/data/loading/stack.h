// Copies samples of equal shapes into rows of stacked tensors.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/data/batch.h"

namespace lockstep::data {

// Two samples of a batch do not fit together. The loader adds their indices in the set.
class SampleMismatch : public InvalidArgument {
 public:
  SampleMismatch(std::size_t number, std::size_t other, const std::string& message)
      : InvalidArgument(message), number_(number), other_(other) {}
  std::size_t number() const { return number_; }
  std::size_t other() const { return other_; }

 private:
  std::size_t number_, other_;
};

// "float32 (24, 24, 3)"
std::string text_of(const TensorSpec& spec);

// Throws InvalidArgument for a tensor that is undefined or not on the CPU.
TensorSpec spec_of(const Tensor& tensor);

// The same for the tensors of a batch. `maker` made it, and the loader's option `device` moves it.
void check_on_cpu(const char* maker, const Batch& batch, const char* device_option);

// Returns (rows, ...) for a sample's (...). Throws InvalidArgument when the shape already has the most extents.
Shape stacked_shape(std::int64_t rows, const Shape& sample);

void copy_to_row(const Tensor& tensor, std::size_t i, const Row& row);

}  // namespace lockstep::data
