// Finding the CUDA part, on machines with and without it.
#include "src/core/device/cuda_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CudaLibraryPlaces, BesideTheProgramInLibInTheBuildTreeAndWhereTheSystemLooks) {
  EXPECT_THAT(cuda_library_places("", "/opt/lockstep/bin/train"),
              ElementsAre("/opt/lockstep/bin/liblockstep_cuda.so", "/opt/lockstep/lib/liblockstep_cuda.so",
                          "/opt/lockstep/src/cuda/liblockstep_cuda.so", "/opt/src/cuda/liblockstep_cuda.so",
                          "liblockstep_cuda.so"));
}

TEST(CudaLibraryPlaces, WhatIsNamedIsTheOnlyOne) {
  EXPECT_THAT(cuda_library_places("/x/y.so", "/bin/train"), ElementsAre("/x/y.so"));
}

TEST(ExplainLoadFailure, NamesWhatIsMissingAndWhereToGetIt) {
  const auto missing = [](const std::string& file) {
    return explain_load_failure("/x/liblockstep_cuda.so",
                                file + ": cannot open shared object file: No such file or directory");
  };
  EXPECT_EQ(missing("/x/liblockstep_cuda.so"),
            "the CUDA part cannot be loaded: the file /x/liblockstep_cuda.so does not exist");
  EXPECT_EQ(missing("libcudnn.so.9"),
            "the CUDA part cannot be loaded: cuDNN (libcudnn.so.9) was not found: install it (NVIDIA's package "
            "libcudnn9-cuda-<major version of CUDA>), or put its folder into LD_LIBRARY_PATH");
  EXPECT_THAT(missing("libcublasLt.so.13"), HasSubstr("cuBLAS (libcublasLt.so.13) was not found"));
  EXPECT_THAT(missing("libnvrtc.so.13"), HasSubstr("NVRTC (libnvrtc.so.13) was not found"));
  EXPECT_THAT(missing("libother.so.1"),
              AllOf(HasSubstr("libother.so.1: cannot open"), HasSubstr("are the CUDA libraries installed")));
  EXPECT_THAT(explain_load_failure("/x/a.so", "/x/a.so: undefined symbol: cudnnNew"),
              HasSubstr("in the versions that it was built with"));
}

}  // namespace
}  // namespace lockstep
