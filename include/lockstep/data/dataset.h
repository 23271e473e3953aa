// A data set: numbered samples that can be put into a batch.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

struct Batch {
  Tensor inputs;   // (N, ...) float32
  Tensor targets;  // (N) int64
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Shape sample_shape() const = 0;  // of one input: (24, 24, 3)

  // Writes sample `index`, as epoch `epoch` sees it (augmentation), to `input` and `target`. A pure function of
  // (index, epoch): the same whatever the rank count. Called from the loader's thread.
  virtual void read(std::int64_t index, std::int64_t epoch, std::span<float> input, std::int64_t& target) const = 0;
};

}  // namespace lockstep::data
