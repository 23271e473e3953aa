// The data sets of cifar10 and cifar10_eval: the real one where there is one, else a generated one.
#pragma once

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

struct Data {
  std::unique_ptr<lockstep::data::Cifar10> train, test;
  std::string what;  // for people
  bool is_generated = false;
};

struct DataOptions {
  std::string folder;  // --data; empty: LOCKSTEP_DATA
  bool generated = false;
  bool augment = true;  // the training images; those of the test set are the augmentation's centre crop
  std::uint64_t seed = 0;
  lockstep::data::ImageAugmentation augmentation = lockstep::data::ImageAugmentation::tutorial();
};

// Throws FileError where --data has no such set.
Data open_data(const DataOptions& options);
