// A build without protobuf.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/models/onnx.h"
#include "lockstep/nn/layers.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep {
namespace {

TEST(OnnxMissing, SaysWhichPackagesToInstall) {
  nn::Linear net(3, 2);
  const std::string path = testing::temporary("missing.onnx");
  const std::string message = message_of([&] { export_onnx(net, {Tensor::zeros({2, 3})}, path); });
  EXPECT_THAT(message, ::testing::HasSubstr("export_onnx: " + path + ": ONNX files need liblockstep_onnx.so"));
  EXPECT_THAT(message, ::testing::HasSubstr("libprotobuf-dev and protobuf-compiler"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace lockstep
