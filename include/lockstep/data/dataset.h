// A data set: numbered samples that can be put into a batch.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/augment_kernels.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

struct Batch {
  Tensor inputs;   // (N, ...) float32
  Tensor targets;  // (N) int64
};

// A data set of square colour images that a device can prepare itself: they travel as bytes, a quarter of what floats take, and the host
// leaves the arithmetic to the device. It does the work of read() in two steps.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  virtual std::int64_t side() const = 0;  // of an image, and of the crop that read() gives
  virtual std::int64_t crop() const = 0;
  // Sample `index` as it is stored, (3, side, side), and what epoch `epoch` does to it: the device's AugmentKernels make the input of both.
  virtual void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                          std::int64_t& target) const = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Shape sample_shape() const = 0;  // of one input: (24, 24, 3)

  // Writes sample `index`, as epoch `epoch` sees it (augmentation), to `input` and `target`. A pure function of
  // (index, epoch): the same whatever the rank count. Called from the loader's thread.
  virtual void read(std::int64_t index, std::int64_t epoch, std::span<float> input, std::int64_t& target) const = 0;

  // Not null: batches for a GPU are made there. Samples are then (crop, crop, 3).
  virtual const ImageSource* images() const { return nullptr; }
};

}  // namespace lockstep::data
