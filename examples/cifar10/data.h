// The data sets of cifar10 and cifar10_eval: the real one if it is found, else a generated one.
#pragma once

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

struct Data {
  std::unique_ptr<lockstep::data::Cifar10> train, test;
  std::string what;  // for the log
  bool is_generated = false;
};

struct DataOptions {
  std::string folder;  // --data; empty: LOCKSTEP_DATA
  bool generated = false;
  bool augment = true;  // the training images; test images are cropped in the centre
  std::uint64_t seed = 0;
  lockstep::data::ImageAugmentation augmentation = lockstep::data::ImageAugmentation::tutorial();
};

// Throws FileError if --data has no such set.
Data open_data(const DataOptions& options);
