// scripts/api-reference: the reference has the public headers' comments, and Doxygen gives no warnings.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "tests/faults/child.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

TEST(ApiReference, HasTheHeadersCommentsAndNoWarning) {
  Child search({"sh", "-c", "command -v doxygen"});
  if (search.wait() != 0) GTEST_SKIP() << "doxygen is not installed";
  const std::filesystem::path folder = ::testing::TempDir() + "api-reference-" + std::to_string(::getpid());
  Child script({LOCKSTEP_SOURCE_ROOT "/scripts/api-reference", folder.string()});
  EXPECT_EQ(script.wait(std::chrono::minutes(4)), 0) << script.errors().substr(0, 4000);
  EXPECT_EQ(script.output(), (folder / "index.html").string() + "\n");
  const std::string tensor = text_of_file((folder / "classlockstep_1_1Tensor.html").string());
  const std::string losses = text_of_file((folder / "losses_8h.html").string());
  std::filesystem::remove_all(folder);
  EXPECT_NE(tensor.find("Uninitialised memory from the device's allocator."), std::string::npos)
      << "a comment before a function";
  EXPECT_NE(tensor.find("undefined: no memory"), std::string::npos) << "a comment after a function";
  EXPECT_NE(losses.find("Each returns a float32 scalar"), std::string::npos) << "a comment at the start of a file";
}

}  // namespace
}  // namespace lockstep::testing
