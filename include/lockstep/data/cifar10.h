// CIFAR-10 in its original binary format, memory-mapped (Krizhevsky 2009).
//
// A record is 3,073 bytes: one label byte, then 1,024 red, 1,024 green, 1,024 blue, each plane row-major 32 x 32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

struct Cifar10Options {
  bool train = true;       // data_batch_*.bin (those that are there), else test_batch.bin
  bool augment = true;     // random 24x24 crop, flip, brightness +-63, contrast 0.2-1.8; else the centre crop
  std::uint64_t seed = 0;  // of the augmentation
};

// A generated set: procedural 32x32 images in 10 classes that a linear model cannot separate and the tutorial network can. A pure
// function of these numbers.
struct GeneratedCifar10 {
  std::int64_t train_images = 10'000;
  std::int64_t test_images = 2'000;
  std::uint64_t seed = 1;
};

// Samples are (24, 24, 3), standardised per image: (x - mean) / max(deviation, 1 / sqrt(count)).
class Cifar10 : public Dataset, public ImageSource {
 public:
  static constexpr std::int64_t kCrop = 24;

  // Throws FileError naming the file: missing, not a multiple of 3,073 bytes, a label of 10 or more (with the record).
  Cifar10(const std::string& folder, const Cifar10Options& options);
  // The generated set, in this process's memory: no file is written.
  Cifar10(const GeneratedCifar10& what, const Cifar10Options& options);
  ~Cifar10() override;
  std::int64_t size() const override;
  Shape sample_shape() const override { return {kCrop, kCrop, 3}; }
  void read(std::int64_t index, std::int64_t epoch, std::span<float> input, std::int64_t& target) const override;
  const ImageSource* images() const override { return this; }
  std::int64_t side() const override;
  std::int64_t crop() const override { return kCrop; }
  void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                  std::int64_t& target) const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The generated set in files of the same format.
void write_generated_cifar10(const std::string& folder, const GeneratedCifar10& what = {});

// The folder that holds CIFAR-10: `wanted` (--data) itself or its cifar10/, then LOCKSTEP_DATA likewise; empty when there
// is none. A `wanted` that has no data_batch file is an error (FileError), not a reason to look further.
std::string find_cifar10(const std::string& wanted);

}  // namespace lockstep::data
