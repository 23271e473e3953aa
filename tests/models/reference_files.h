// The models of reference_models.py, which another process of the same test program may be making.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/train/safetensors.h"
#include "tests/support/temporary.h"

namespace lockstep::models {

// The Python with transformers and torchvision; "" if there is none.
inline std::string reference_python() {
  const char* python = std::getenv("LOCKSTEP_TEST_TORCH_PYTHON");
  return python == nullptr ? "" : python;
}

inline int run_reference(const std::string& command, const std::string& folder) {
  const std::string log = folder + ".log";
  const int status = std::system(("'" + reference_python() + "' '" LOCKSTEP_REFERENCE_MODELS "' " + command + " '" +
                                  folder + "' >'" + log + "' 2>&1")
                                     .c_str());
  if (status != 0) (void)std::system(("tail -n 30 '" + log + "' >&2").c_str());
  std::filesystem::remove(log);
  return status;
}

// Largest difference of two float32 tensors of one shape, in parts of the largest expected value.
inline double relative_error(const Tensor& found, const Tensor& expected) {
  EXPECT_EQ(found.shape(), expected.shape());
  if (found.shape() != expected.shape()) return HUGE_VAL;
  double difference = 0, largest = 0;
  for (std::int64_t i = 0; i < found.count(); ++i) {
    const double each = std::abs(double{found.data<float>()[i]} - expected.data<float>()[i]);
    difference = std::isnan(each) ? HUGE_VAL : std::max(difference, each);
    largest = std::max(largest, std::abs(double{expected.data<float>()[i]}));
  }
  return difference / largest;
}

// The results of the reference.
class Expected {
 public:
  explicit Expected(const std::string& folder) : file_(train::load_safetensors(folder + "/expected.safetensors")) {}
  Tensor operator[](const std::string& name) const {
    for (const NamedTensor& each : file_.tensors)
      if (each.name == name) return each.tensor;
    ADD_FAILURE() << "expected.safetensors has no " << name;
    return {};
  }
  const FileTensors& all() const { return file_.tensors; }

 private:
  train::Safetensors file_;
};

}  // namespace lockstep::models
