// Finding the CUDA part, on machines with and without it.
#include "src/core/cuda_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(CudaLibraryPlaces, BesideTheProgramInLibInTheBuildTreeAndWhereTheSystemLooks) {
  EXPECT_THAT(cuda_library_places("", "/opt/lockstep/bin/train"),
              ElementsAre("/opt/lockstep/bin/liblockstep_cuda.so", "/opt/lockstep/lib/liblockstep_cuda.so",
                          "/opt/lockstep/src/cuda/liblockstep_cuda.so", "/opt/src/cuda/liblockstep_cuda.so", "liblockstep_cuda.so"));
}

TEST(CudaLibraryPlaces, WhatIsNamedIsTheOnlyOne) { EXPECT_THAT(cuda_library_places("/x/y.so", "/bin/train"), ElementsAre("/x/y.so")); }

}  // namespace
}  // namespace lockstep
