// MPI's library is needed only by programs that use MPI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#if LOCKSTEP_WITH_MPI
#include "src/comm/mpi/library/mpi_api.h"
#endif
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MpiLibrary, IsNotLoadedByWhoDoesNotUseIt) {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_THAT(text, AllOf(HasSubstr("libc.so"), Not(HasSubstr("libmpi.so"))));
}

TEST(MpiLibrary, AFileThatIsNotThereOrNoMpiIsNamed) {
#if LOCKSTEP_WITH_MPI
  EXPECT_THAT(message_of([] { mpi::load_api("libno-such-mpi.so.40"); }),
              AllOf(HasSubstr("MPI cannot be loaded: libno-such-mpi.so.40"), HasSubstr("libopenmpi3")));
  EXPECT_THAT(message_of([] { mpi::load_api("libm.so.6"); }),
              HasSubstr("libm.so.6 is not MPI, or is older than MPI 3.0: it lacks MPI_Initialized"));
#else
  GTEST_SKIP() << "this build has no mpi backend";
#endif
}

}  // namespace
}  // namespace lockstep
