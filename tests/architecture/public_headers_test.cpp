// The public headers: lockstep.h has them, each compiles alone, and they say what the shared library exports and which
// version they are of.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/architecture/command.h"
#include "tests/support/pattern.h"
#include "tests/support/sanitized.h"

namespace {

using lockstep::testing::CommandEnd;
using lockstep::testing::run_command;
namespace fs = std::filesystem;

const fs::path kInclude = fs::path(LOCKSTEP_SOURCE_ROOT) / "include";

// Public headers that lockstep.h leaves to who needs them, and why.
const std::map<std::string, std::string> kLeftOut = {
    {"lockstep/core/cpu_dispatch.h", "is a macro for files of kernels, which need compiler options of their own"},
    {"lockstep/core/host_device.h", "is a macro for functions that kernels of the CPU and of a GPU share"},
    {"lockstep/core/philox.h", "draws the numbers of kernels; tensor/random.h is for programs"},
    {"lockstep/reduce/compression_kernels.h", "is for the kernels of a device; reduce/hooks.h is for programs"},
    {"lockstep/torch.h", "needs LibTorch's headers"},
    {"lockstep/torch_checkpoint.h", "is for programs of LibTorch"},
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
  for (const auto& inclusion :
       lockstep::testing::find_matches(read_file(kInclude / header), R"re(#include "(lockstep/[^"]+)")re"))
    collect(inclusion[1], reached);
}

TEST(PublicHeaders, AreInLockstepH) {
  std::set<std::string> reached;
  collect("lockstep/lockstep.h", reached);
  const auto headers = public_headers();
  EXPECT_GT(headers.size(), 40u) << kInclude;
  for (const std::string& header : headers)
    EXPECT_NE(reached.count(header), kLeftOut.count(header))
        << header << ": lockstep.h must lead to it, or it must be left out for a reason";
  for (const auto& [header, reason] : kLeftOut)
    EXPECT_TRUE(fs::exists(kInclude / header)) << header << " left out: it " << reason;
}

// The warnings of strict projects, in which our headers are not system headers.
constexpr const char* kStrict = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wold-style-cast -Werror";

// The name of a class alone may be declared in another namespace.
TEST(PublicHeaders, OfTrainDeclareInItsNamespace) {
  int headers = 0;
  for (const std::string& header : public_headers()) {
    if (!header.starts_with("lockstep/train/")) continue;
    ++headers;
    std::string text = read_file(kInclude / header);
    for (const auto& named : lockstep::testing::find_matches(text, R"re(namespace lockstep \{\n(class \w+;\n)+\})re"))
      text.erase(text.find(named[0]), named[0].size());
    for (const auto& opened : lockstep::testing::find_matches(text, R"re(\nnamespace ([\w:]*))re"))
      EXPECT_EQ(opened[1], "lockstep::train") << header;
  }
  EXPECT_GT(headers, 20);
}

// The headers that a source of the library includes before anything else: where each source is a unit of its own
// (scripts/test-matrix unity-off), they are compiled alone.
std::set<std::string> compiled_first() {
  std::set<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(kInclude.parent_path() / "src"))
    if (entry.path().extension() == ".cpp")
      if (const auto found = lockstep::testing::find_matches(read_file(entry.path()), R"re(#include [<"]([^">]+)[">])re");
          !found.empty())
        headers.insert(found.front()[1]);
  return headers;
}

TEST(PublicHeaders, EachCompilesAlone) {
  if (lockstep::testing::kSanitized) GTEST_SKIP() << "the builds without a sanitizer compile the same headers";
  std::vector<std::string> headers = public_headers();
  const std::set<std::string> elsewhere = compiled_first();
  std::erase_if(headers, [&](const std::string& header) { return elsewhere.contains(header); });
  EXPECT_GT(headers.size(), 20u);
  const auto compile_every_second = [&](std::size_t first) {
    for (std::size_t i = first; i < headers.size(); i += 2) {
      const CommandEnd compiled = run_command(
          fmt::format("{} -std=c++20 {} -fsyntax-only -I {} -I {} -include {} -x c++ /dev/null", LOCKSTEP_COMPILER,
                      kStrict, kInclude.string(), LOCKSTEP_SOURCE_ROOT "/tests/architecture/fmt_12", headers[i]));
      EXPECT_EQ(compiled.exit_code, 0) << headers[i] << "\n" << compiled.output;
    }
  };
  std::thread other([&] { compile_every_second(1); });
  compile_every_second(0);
  other.join();
}

TEST(PublicHeaders, NeedCpp20OrNewer) {
  const auto compile = [](const char* standard) {
    return run_command(fmt::format("{} -std={} {} -fsyntax-only -I {} -include lockstep/lockstep.h -x c++ /dev/null",
                                   LOCKSTEP_COMPILER, standard, kStrict, kInclude.string()));
  };
  const CommandEnd older = compile("c++17"), newer = compile("c++2b");
  EXPECT_NE(older.exit_code, 0);
  EXPECT_NE(older.output.find("Lockstep's headers are C++20: compile with -std=c++20 or newer"), std::string::npos)
      << older.output;
  EXPECT_EQ(newer.exit_code, 0) << newer.output;
}

// The shared library hides what is not marked so.
TEST(PublicHeaders, ExportWhatTheyDeclare) {
  for (const std::string& header : public_headers()) {
    const std::string text = read_file(kInclude / header);
    const std::size_t opened = text.find("\nnamespace lockstep"), closed = text.rfind("\n}  // namespace lockstep");
    if (opened == std::string::npos || header == "lockstep/core/version.h") continue;
    const std::string push = "\n#pragma GCC visibility push(default)", pop = "\n#pragma GCC visibility pop\n";
    EXPECT_EQ(text.rfind(push, opened) + push.size(), opened)
        << header << ": before its first namespace there must be" << push;
    EXPECT_EQ(text.find(pop, closed), text.find('\n', closed + 1))
        << header << ": after its last namespace there must be" << pop;
  }
}

TEST(PublicHeaders, AreOfTheBuildsVersion) {
  const std::string text = read_file(kInclude / "lockstep/core/version.h"), version = LOCKSTEP_PROJECT_VERSION;
  EXPECT_NE(text.find("#define LOCKSTEP_VERSION \"" + version + "\""), std::string::npos)
      << "meson.build says " << version;
  const std::string number = version.substr(0, version.rfind('.')),
                    name = lockstep::testing::replace_matches(number, "[.]", "_");
  EXPECT_EQ(lockstep::testing::find_matches(text, "lockstep_headers_" + name + "_need_library_" + name + "__").size(),
            2u)
      << "the symbol's name has another version than " << number;
}

}  // namespace
