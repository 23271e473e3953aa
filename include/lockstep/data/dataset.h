// A data set: numbered samples. The sampler decides their order and the loader makes batches of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/augment_kernels.h"
#include "lockstep/data/batch.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

class ImageSource;

// The loader's threads call all const members, at the same time when there are several (num_workers), so these must not
// change shared state.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;

  // Returns sample `index`, 0 <= index < size(), as epoch `epoch` sees it (augmentation). It is a pure function of
  // (index, epoch), so it does not depend on the number of ranks. The tensors are on the CPU and belong to the caller,
  // who may change them. An exception is rethrown, with the index, where the loader's batches are taken.
  virtual Sample get(std::int64_t index, std::int64_t epoch) const = 0;

  // Returns the shapes and types that all samples share; empty when they differ or the set does not know. When not
  // empty, read() writes samples directly into the batch, which saves an allocation per sample.
  virtual std::vector<TensorSpec> element_spec() const { return {}; }
  // Writes the sample of get() into `row`, whose tensors match element_spec(). The default copies the result of get()
  // and throws InvalidArgument when it does not match.
  virtual void read(std::int64_t index, std::int64_t epoch, const Row& row) const;

  // When not null, a GPU makes the batches, (N, crop, crop, 3) and (N), from the stored images.
  virtual const ImageSource* images() const { return nullptr; }
};

// A data set whose samples all have the same shapes and types, and which writes them directly into the batch.
class FixedShapeDataset : public Dataset {
 public:
  std::vector<TensorSpec> element_spec() const override = 0;  // not empty
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override = 0;
  Sample get(std::int64_t index, std::int64_t epoch) const override;  // new tensors, filled by read()
};

// A data set of square colour images and labels that a device can prepare itself. Images travel as bytes, a quarter of
// the size of floats, and the device does the arithmetic. It splits the work of read() into two steps.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  virtual std::int64_t side() const = 0;  // extents of an image and of the crop that read() returns, in pixels
  virtual std::int64_t crop() const = 0;
  virtual ImageNormalization normalization() const { return {}; }
  // Returns sample `index` as it is stored, (3, side, side), and its augmentation in epoch `epoch`. The device's
  // AugmentKernels make the input from both.
  virtual void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                          std::int64_t& target) const = 0;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
