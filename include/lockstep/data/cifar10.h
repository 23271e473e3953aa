// CIFAR-10 in its original binary format, memory-mapped (Krizhevsky 2009).
//
// A record has 3,073 bytes: one label byte, then 1,024 red, 1,024 green and 1,024 blue bytes, each plane row-major 32
// x 32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/images.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct Cifar10Options {
  bool train = true;       // read all data_batch_*.bin files that exist, else test_batch.bin
  bool augment = true;     // false: take the centre crop, with the same size and normalization
  std::uint64_t seed = 0;  // seeds the augmentation
  ImageAugmentation augmentation = ImageAugmentation::tutorial();
};

// A generated set: procedural 32 x 32 images in 10 classes that a linear model cannot separate but the tutorial network
// can. It is a pure function of these numbers.
struct GeneratedCifar10 {
  std::int64_t train_images = 10'000;
  std::int64_t test_images = 2'000;
  std::uint64_t seed = 1;
};

// Samples are {(24, 24, 3) float32, () int64}, or of another extent if the augmentation's crop says so. Each image is
// standardised on its own unless the normalization says otherwise. A copy shares the images.
class Cifar10 : public ImageDataset {
 public:
  // Throws FileError with the file's name when a file is missing, is not a multiple of 3,073 bytes or has a label of 10
  // or more (with the record).
  Cifar10(const std::string& folder, const Cifar10Options& options);
  // Makes the generated set in this process's memory and writes no file.
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

// Writes the generated set to files in the same format.
void write_generated_cifar10(const std::string& folder, const GeneratedCifar10& what = {});

// Returns the folder that holds CIFAR-10: `wanted` (the value of --data), its cifar10/ or its cifar-10-batches-bin/.
// When `wanted` is empty, LOCKSTEP_DATA is searched in the same way. Returns "" when nothing is found there. A
// non-empty `wanted` without a data_batch file throws FileError; no other place is searched.
std::string find_cifar10(const std::string& wanted);

}  // namespace lockstep::data
#pragma GCC visibility pop
