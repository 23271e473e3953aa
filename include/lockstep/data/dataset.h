// A data set: numbered samples. The sampler says in which order they come, the loader makes batches of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/augment_kernels.h"
#include "lockstep/data/batch.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

class ImageSource;

// All const members are called from the loader's threads, from several at once when it has several (num_workers): they
// change nothing that they share.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;

  // Sample `index`, 0 <= index < size(), as epoch `epoch` sees it (augmentation). A pure function of (index, epoch):
  // the same whatever the rank count. The tensors are on the CPU and the caller's own, to change as it likes. What it
  // throws arrives where the loader's batches are taken, with the index.
  virtual Sample get(std::int64_t index, std::int64_t epoch) const = 0;

  // Where all samples have the same shapes and types: these. Empty where they differ, or where the set does not say.
  // Batches are then written in place by read(), without memory for each sample.
  virtual std::vector<TensorSpec> element_spec() const { return {}; }
  // As get(), into `row`, whose tensors are those of element_spec(). This one copies what get() returns, and throws
  // InvalidArgument when it is something else.
  virtual void read(std::int64_t index, std::int64_t epoch, const Row& row) const;

  // Not null: batches for a GPU are made there, as (N, crop, crop, 3) and (N).
  virtual const ImageSource* images() const { return nullptr; }
};

// A data set whose samples all have the same shapes and types, which it writes where they belong.
class FixedShapeDataset : public Dataset {
 public:
  std::vector<TensorSpec> element_spec() const override = 0;  // not empty
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override = 0;
  Sample get(std::int64_t index, std::int64_t epoch) const override;  // new tensors, by read()
};

// A data set of square colour images and labels that a device can prepare itself: they travel as bytes, a quarter of
// what floats take, and the host leaves the arithmetic to the device. It does the work of read() in two steps.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  virtual std::int64_t side() const = 0;  // of an image, and of the crop that read() gives
  virtual std::int64_t crop() const = 0;
  virtual ImageNormalization normalization() const { return {}; }
  // Sample `index` as it is stored, (3, side, side), and what epoch `epoch` does to it: the device's AugmentKernels
  // make the input of both.
  virtual void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                          std::int64_t& target) const = 0;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
