// CIFAR-10 in its original binary format, memory-mapped (Krizhevsky 2009).
//
// A record is 3,073 bytes: one label byte, then 1,024 red, 1,024 green, 1,024 blue, each plane row-major 32 x 32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/images.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct Cifar10Options {
  bool train = true;       // data_batch_*.bin (those that are there), else test_batch.bin
  bool augment = true;     // as `augmentation` says; else the centre crop of its size, with its normalization
  std::uint64_t seed = 0;  // of the augmentation
  ImageAugmentation augmentation = ImageAugmentation::tutorial();
};

// A generated set: procedural 32x32 images in 10 classes that a linear model cannot separate and the tutorial network
// can. A pure function of these numbers.
struct GeneratedCifar10 {
  std::int64_t train_images = 10'000;
  std::int64_t test_images = 2'000;
  std::uint64_t seed = 1;
};

// Samples are {(24, 24, 3) float32, () int64}, with another crop of that size, each image standardised by itself unless
// the normalization says otherwise. A copy shares the images.
class Cifar10 : public ImageDataset {
 public:
  // Throws FileError naming the file: missing, not a multiple of 3,073 bytes, a label of 10 or more (with the record).
  Cifar10(const std::string& folder, const Cifar10Options& options);
  // The generated set, in this process's memory: no file is written.
  Cifar10(const GeneratedCifar10& what, const Cifar10Options& options);
  ~Cifar10() override;
  Cifar10(const Cifar10&) = default;
  Cifar10& operator=(const Cifar10&) = default;
  std::int64_t size() const override;

 protected:
  Stored stored(std::int64_t index) const override;

 private:
  class Impl;
  std::shared_ptr<const Impl> impl_;
};

// The generated set in files of the same format.
void write_generated_cifar10(const std::string& folder, const GeneratedCifar10& what = {});

// The folder that holds CIFAR-10: `wanted` (--data) itself, its cifar10/ or its cifar-10-batches-bin/; where `wanted`
// is empty, LOCKSTEP_DATA likewise. Empty: there is none. A `wanted` without a data_batch file is an error (FileError),
// no reason to look further.
std::string find_cifar10(const std::string& wanted);

}  // namespace lockstep::data
#pragma GCC visibility pop
