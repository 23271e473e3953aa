// A build without libjpeg-turbo or libpng.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/data/image_folder.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

TEST(ImageFilesMissing, SayWhichPackagesToInstall) {
  const TestFile file("x", "x.png");
  EXPECT_THAT(
      message_of([&] { read_image(file.path()); }),
      ::testing::HasSubstr(file.path() +
                           ": this build of Lockstep cannot decode images: install libturbojpeg0-dev and libpng-dev"));
}

}  // namespace
}  // namespace lockstep::data
