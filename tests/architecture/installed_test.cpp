// What users get: lockstep.h with the public headers, each of which compiles alone, and an installation through which pkg-config builds
// README's program outside the tree.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/pattern.h"
#include "tests/support/sanitized.h"

namespace {

namespace fs = std::filesystem;

const fs::path kInclude = fs::path(LOCKSTEP_SOURCE_ROOT) / "include";

// Public headers that lockstep.h leaves to who needs them, and why.
const std::map<std::string, std::string> kLeftOut = {
    {"lockstep/core/cpu_dispatch.h", "is a macro for files of kernels, which need compiler options of their own"},
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> public_headers() {
  std::vector<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(kInclude))
    if (entry.path().extension() == ".h") headers.push_back(entry.path().lexically_relative(kInclude).generic_string());
  return headers;
}

// The header, and all of ours that it includes.
void collect(const std::string& header, std::set<std::string>& reached) {
  if (!reached.insert(header).second) return;
  for (const auto& inclusion : lockstep::testing::find_matches(read_file(kInclude / header), R"re(#include "(lockstep/[^"]+)")re"))
    collect(inclusion[1], reached);
}

struct Outcome {
  int exit_code;
  std::string output;  // stdout and stderr
};

Outcome run(const std::string& command) {
  std::FILE* pipe = popen(("{ timeout 300 " + command + "; } 2>&1 </dev/null").c_str(), "r");
  std::string output;
  for (char buffer[4096]; const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe);) output.append(buffer, got);
  const int status = pclose(pipe);
  if (output.size() > 4000) output = output.substr(0, 4000) + "...";
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

TEST(PublicHeaders, AreInLockstepH) {
  std::set<std::string> reached;
  collect("lockstep/lockstep.h", reached);
  const auto headers = public_headers();
  EXPECT_GT(headers.size(), 40u) << kInclude;
  for (const std::string& header : headers)
    EXPECT_NE(reached.count(header), kLeftOut.count(header))
        << header << ": lockstep.h must lead to it, or it must be left out for a reason";
  for (const auto& [header, reason] : kLeftOut) EXPECT_TRUE(fs::exists(kInclude / header)) << header << " left out: it " << reason;
}

TEST(PublicHeaders, EachCompilesAlone) {
  if (lockstep::testing::kSanitized) GTEST_SKIP() << "the builds without a sanitizer compile the same headers";
  const auto headers = public_headers();
  const auto compile_every_second = [&](std::size_t first) {
    for (std::size_t i = first; i < headers.size(); i += 2) {
      const Outcome compiled = run(
          fmt::format("{} -std=c++20 -fsyntax-only -I {} -include {} -x c++ /dev/null", LOCKSTEP_COMPILER, kInclude.string(), headers[i]));
      EXPECT_EQ(compiled.exit_code, 0) << headers[i] << "\n" << compiled.output;
    }
  };
  std::thread other([&] { compile_every_second(1); });
  compile_every_second(0);
  other.join();
}

class Installed : public ::testing::Test {
 protected:
  Installed() {
    std::string pattern = ::testing::TempDir() + "lockstep-installed-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~Installed() override { fs::remove_all(folder_); }

  std::string folder_;
};

TEST_F(Installed, PkgConfigBuildsReadmesProgramOutsideTheTree) {
  if (lockstep::testing::kSanitized) GTEST_SKIP() << "a program without the sanitizer cannot use a library with it";
  if (run("pkg-config --version").exit_code != 0) GTEST_SKIP() << "pkg-config is not installed";
  if (run(std::string(LOCKSTEP_MESON) + " --version").exit_code != 0) GTEST_SKIP() << "there is no meson to install with";
  const Outcome installed =
      run(fmt::format("{} install -C {} --no-rebuild --destdir {}/root", LOCKSTEP_MESON, LOCKSTEP_BUILD_ROOT, folder_));
  ASSERT_EQ(installed.exit_code, 0) << installed.output;
  // As if it had been configured for that folder.
  for (const auto& entry : fs::recursive_directory_iterator(folder_ + "/root"))
    if (entry.path().filename() == "lockstep.pc") {
      const std::string text = lockstep::testing::replace_matches(read_file(entry.path()), "^prefix=(.*)", "prefix=" + folder_ + "/root$1");
      std::ofstream(folder_ + "/lockstep.pc") << text;
    }
  fs::copy_file(fs::path(LOCKSTEP_SOURCE_ROOT) / "examples/hello_ddp.cpp", folder_ + "/program.cpp");
  const std::string here = "sh -c 'cd " + folder_ + " && ";
  const Outcome built = run(here + LOCKSTEP_COMPILER
                            " program.cpp $(PKG_CONFIG_PATH=. pkg-config --cflags --libs lockstep) "
                            "-o program'");
  ASSERT_EQ(built.exit_code, 0) << built.output;
  const Outcome trained = run(here + "./program'");
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_NE(trained.output.find("epoch 4: mean loss"), std::string::npos) << trained.output;
}

}  // namespace
