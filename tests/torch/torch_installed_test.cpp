// liblockstep_torch as users have it: a program outside of the tree finds it through pkg-config and CMake, and trains
// on two ranks. A wheel of another version, or another folder, is refused when the build is configured.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/architecture/command.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

bool has_tool(const std::string& tool) { return run_command("sh -c 'command -v " + tool + "'").exit_code == 0; }

class TorchInstalled : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string pattern = ::testing::TempDir() + "lockstep-torch-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    if (!has_tool(LOCKSTEP_MESON)) return;
    installed_ = run_command(
        fmt::format("{} install -C {} --no-rebuild --destdir {}/root", LOCKSTEP_MESON, LOCKSTEP_BUILD_ROOT, folder_));
    prefix_ = folder_ + "/root" + LOCKSTEP_PREFIX;
    libraries_ = prefix_ + "/" + LOCKSTEP_LIBDIR;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  void SetUp() override {
    if (!has_tool(LOCKSTEP_MESON)) GTEST_SKIP() << "there is no meson to install with";
    ASSERT_EQ(installed_.exit_code, 0) << installed_.output;
    here_ = folder_ + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::copy(LOCKSTEP_SOURCE_ROOT "/tests/torch/outside", here_);
  }

  CommandEnd run(const std::string& command) const {
    return run_command(fmt::format("env -C {} LD_LIBRARY_PATH={} PKG_CONFIG_PATH={}/pkgconfig {}", here_, libraries_,
                                   libraries_, command));
  }
  CommandEnd configure_by_cmake(const std::string& arguments = "") const {
    return run(fmt::format("env 'CXX={}' cmake -G Ninja -B build -DCMAKE_PREFIX_PATH={} {}", LOCKSTEP_COMPILER, prefix_,
                           arguments));
  }
  void expect_two_ranks_train(const std::string& program) const {
    const CommandEnd trained = run(prefix_ + "/bin/lockrun --no-fold -n 2 " + program);
    EXPECT_EQ(trained.exit_code, 0) << trained.output;
    for (const char* line : {"[0] y = 2.00 x + 1.00\n", "[1] y = 2.00 x + 1.00\n"})
      EXPECT_NE(trained.output.find(line), std::string::npos) << line << trained.output;
  }

  static inline std::string folder_, prefix_, libraries_;
  static inline CommandEnd installed_;
  std::string here_;
};

TEST_F(TorchInstalled, PkgConfigBuildsAProgramOutsideTheTree) {
  if (!has_tool("pkg-config")) GTEST_SKIP() << "pkg-config is not installed";
  const CommandEnd built =
      run(fmt::format("sh -c '{} -std=c++20 -O0 program.cpp -o program $(pkg-config --define-variable=prefix={} "
                      "--cflags --libs lockstep-torch lockstep)'",
                      LOCKSTEP_COMPILER, prefix_));
  ASSERT_EQ(built.exit_code, 0) << built.output;
  expect_two_ranks_train("./program");
}

TEST_F(TorchInstalled, CMakeBuildsAProgramOutsideTheTree) {
  if (!has_tool("cmake")) GTEST_SKIP() << "cmake is not installed";
  const CommandEnd configured = configure_by_cmake();
  ASSERT_EQ(configured.exit_code, 0) << configured.output;
  const CommandEnd built = run("cmake --build build");
  ASSERT_EQ(built.exit_code, 0) << built.output;
  expect_two_ranks_train("build/program");
}

// A folder that looks like PyTorch's, as far as Lockstep reads it.
std::string torch_folder_of_version(const std::string& folder, const std::string& version) {
  fs::create_directories(folder + "/include/torch/headeronly");
  std::ofstream(folder + "/include/torch/headeronly/version.h")
      << "#define TORCH_VERSION \\\n  \"" << version << "\"\n";
  return folder;
}

TEST_F(TorchInstalled, CMakeRefusesAnotherWheel) {
  if (!has_tool("cmake")) GTEST_SKIP() << "cmake is not installed";
  const CommandEnd missing = configure_by_cmake("-DLOCKSTEP_TORCH=/nowhere");
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_FALSE(find_match(missing.output, "/nowhere\\s+is\\s+not").empty()) << missing.output;
  const CommandEnd other =
      configure_by_cmake("-DLOCKSTEP_TORCH=" + torch_folder_of_version(here_ + "/torch", "2.14.1"));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_FALSE(find_match(other.output, "has\\s+another\\s+version").empty()) << other.output;
  const CommandEnd unknown =
      run("sh -c 'sed -i s/torch/tensorflow/ CMakeLists.txt && cmake -B build "
          "-DCMAKE_PREFIX_PATH=" +
          prefix_ + "'");
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_FALSE(find_match(unknown.output, "no\\s+component\\s+tensorflow").empty()) << unknown.output;
}

// Meson's error when the sources are configured with -Dtorch=FOLDER.
std::string refused_by_meson(const std::string& build, const std::string& folder) {
  const CommandEnd end = run_command(
      fmt::format("env 'CXX={}' {} setup {} {} -Dtorch={} -Dcuda=disabled -Donednn=disabled -Dmpi=disabled "
                  "-Dnccl=disabled -Dhwloc=disabled -Dtokenizers=disabled -Dsentencepiece=disabled -Donnx=disabled "
                  "-Dimages=disabled -Dtests=false -Dbenchmarks=false",
                  LOCKSTEP_COMPILER, LOCKSTEP_MESON, build, LOCKSTEP_SOURCE_ROOT, folder),
      std::string::npos);
  EXPECT_NE(end.exit_code, 0);
  return end.output;
}

TEST_F(TorchInstalled, MesonRefusesAnotherWheel) {
  const std::string none = refused_by_meson(here_ + "/build-none", "/nowhere");
  EXPECT_NE(none.find("-Dtorch=/nowhere is not the torch folder of a wheel of PyTorch 2.15.0"), std::string::npos)
      << none;
  const std::string folder = torch_folder_of_version(here_ + "/other", "2.14.1"),
                    other = refused_by_meson(here_ + "/build-other", folder);
  EXPECT_NE(other.find("-Dtorch=" + folder + " is PyTorch 2.14.1, and Lockstep is for 2.15.0"), std::string::npos)
      << other;
  // A library whose function takes a string of the ABI before C++11.
  const std::string old = torch_folder_of_version(here_ + "/old", "2.15.0");
  fs::create_directories(old + "/lib");
  std::ofstream(old + "/old.cpp")
      << "#define _GLIBCXX_USE_CXX11_ABI 0\n#include <string>\nnamespace c10::detail {\n"
         "void torchCheckFail(const char*, const char*, unsigned, const std::string&) {}\n}\n";
  for (const char* library : {"torch_cpu", "c10"})
    ASSERT_EQ(run_command(fmt::format("{} -std=c++20 -shared -fPIC {}/old.cpp -o {}/lib/lib{}.so", LOCKSTEP_COMPILER,
                                      old, old, library))
                  .exit_code,
              0);
  const std::string abi = refused_by_meson(here_ + "/build-old", old);
  EXPECT_NE(abi.find("it is a wheel of the old C++ ABI"), std::string::npos) << abi;
}

}  // namespace
}  // namespace lockstep::testing
