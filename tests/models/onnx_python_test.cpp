// Files of export_onnx() in onnxruntime: the same results as here, with other numbers of samples than the example's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/tensor/random.h"
#include "lockstep/train/safetensors.h"
#include "tests/models/onnx_cases.h"
#include "tests/support/temporary.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kExample = 2, kOthers[] = {1, 5};

class OnnxRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const python = std::getenv("LOCKSTEP_TEST_TORCH_PYTHON");
    if (python == nullptr) GTEST_SKIP() << "LOCKSTEP_TEST_TORCH_PYTHON names no python with onnx and onnxruntime";
    python_ = python;
    folder_ = testing::temporary("onnx");
    fs::create_directory(folder_);
    manual_seed(7);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // Writes the cases' files, and inputs and results for the script to compare.
  void compare(const std::vector<OnnxCase>& cases) {
    for (const OnnxCase& each : cases) {
      SCOPED_TRACE(each.name);
      export_onnx(*each.module, each.inputs(kExample), folder_ + "/" + each.name + ".onnx", each.options);
      each.module->eval();
      std::vector<NamedTensor> tensors;
      for (const std::int64_t samples : kOthers) {
        const Tensors inputs = each.inputs(samples);
        const NoGrad no_grad;
        const Tensors outputs = (*each.module)(inputs);
        for (std::size_t i = 0; i < inputs.size(); ++i)
          tensors.push_back({fmt::format("{}/input/{}", samples, i), inputs[i].clone()});
        for (std::size_t i = 0; i < outputs.size(); ++i)
          tensors.push_back({fmt::format("{}/output/{}", samples, i), outputs[i].clone()});
      }
      train::save_safetensors(folder_ + "/" + each.name + ".safetensors", tensors);
    }
    const std::string command = fmt::format("'{}' '{}' '{}' 2>&1", python_, LOCKSTEP_CHECK_ONNX, folder_);
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  std::string python_, folder_;
};

TEST_F(OnnxRuntime, ComputesEveryOperator) { compare(operator_cases()); }
TEST_F(OnnxRuntime, ComputesEveryLayer) { compare(layer_cases()); }
TEST_F(OnnxRuntime, ComputesTheModels) { compare(model_cases()); }

}  // namespace
}  // namespace lockstep::models
