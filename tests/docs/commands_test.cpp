// The commands in README and docs/ run here, in a folder where `build` is this build, or this file explains why not.
// Commands for Slurm, in blocks of "bash", run in tests/slurm.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/child.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const std::string kRoot = LOCKSTEP_SOURCE_ROOT;

// Keyed by a block's first line.
const std::map<std::string, std::string> kNotRunHere = {
    {"scripts/train          # builds, then trains CIFAR-10 on two ranks in about a minute, or on the GPUs that there "
     "are",
     "builds everything again; CI runs scripts/test, and tests/train runs the example"},
    {"$ export LOCKSTEP_TOKEN=$(openssl rand -hex 32)        # the same on every node",
     "needs two machines; tests/launch/nodes_test.cpp runs these commands in network namespaces"},
    {"$ build/bench/all_reduce -b 4 -e 16M -f 16 --check",
     "measures and needs an idle machine; tests/bench/collective_program_test.cpp runs the program with few "
     "rounds"},
    {"$ build/bench/all_reduce --ranks 2 -b 4 -e 64M --json-file shm.json",
     "the same; tests/bench/simulate_program_test.cpp runs the model on such a file"},
    {"$ lockrun topology",
     "its output depends on the machine; LockrunTopology in tests/faults compares its sections with the page"},
    {"$ lockrun --flight-dir records -n 3 ./train", "tests/diagnose runs it and compares its sentences with the page"},
    {"scripts/package && sudo apt install ./build-package/*.deb",
     "builds everything again; scripts/test-matrix does it on a bare Debian"},
    {"meson setup build --prefix=/opt/lockstep -Dtests=false -Dbenchmarks=false && meson install -C build",
     "the same; tests/architecture/installed_test.cpp installs this build"},
    {"$ pip install torch==2.15.0",
     "downloads gigabytes and builds everything again; tests/torch/torch_installed_test.cpp installs such a build"},
    {"$ cmake -B build && cmake --build build",
     "tests/architecture/installed_test.cpp builds this program with CMake and runs it"},
    {"$ export LOCKSTEP_TOKEN=...                            # the same on both, from `openssl rand -hex 32`",
     "needs two machines; tests/launch/nodes_test.cpp runs such commands in network namespaces"},
    {"meson setup build && ninja -C build        # \"CUDA: YES\" in the summary, or NO with the reason",
     "needs the CUDA toolkit and a GPU; scripts/test-gpu is for machines with both"},
    {"scripts/test-gpu                    # builds what it needs, then runs all stages, a few minutes each",
     "needs a GPU; tests/bench/gpu_scripts_test.cpp runs the script without one"},
    {"scripts/test-gpu smoke devices graph --time-limit 540", "the same"},
    {"scripts/bench-gpu                                          # writes bench/results/<gpu>.json after each row, in "
     "nine minutes",
     "needs a GPU; tests/bench/bench_gpu_test.cpp runs the script on the CPU"},
    {"scripts/bundle                                             # makes build-bundle/lockstep, at most 50 MiB",
     "needs CUDA's toolkit; tests/bench/gpu_scripts_test.cpp runs it with --from"},
};

struct Shown {
  std::string page;
  Block block;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<Shown> blocks_with_commands() {
  std::vector<Shown> shown;
  for (const std::string& page : pages_below(kRoot))
    for (const Block& block : blocks_of(text_of_file(kRoot + "/" + page)))
      if (block.language == "sh" || block.language == "console") shown.push_back({page, block});
  return shown;
}

std::vector<Shown> blocks_to_run() {
  std::vector<Shown> here;
  for (const Shown& shown : blocks_with_commands())
    if (kNotRunHere.count(first_line(shown.block.text)) == 0) here.push_back(shown);
  return here;
}

// The commands after "$ " and the lines that they print. A block of "sh" has only commands.
struct Session {
  std::string commands;
  std::vector<std::string> output;
};

Session session_of(const Block& block) {
  if (block.language == "sh") return {block.text, {"..."}};
  Session session;
  std::istringstream lines(block.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("$ ", 0) == 0)
      session.commands += line.substr(2) + "\n";
    else
      session.output.push_back(line);
  }
  return session;
}

// Replaces numbers, which differ from run to run.
std::string shape_of(const std::string& line) { return replace_matches(line, R"(-?[0-9]+(\.[0-9]+)?)", "N"); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  return found;
}

// Expects the output to have the page's lines in order. A line "..." matches any number of lines.
void expect_shape(const std::vector<std::string>& printed, const std::vector<std::string>& shown) {
  std::size_t at = 0;
  bool any = false;
  for (const std::string& line : shown) {
    if (line == "...") {
      any = true;
      continue;
    }
    while (any && at < printed.size() && shape_of(printed[at]) != shape_of(line)) ++at;
    ASSERT_LT(at, printed.size()) << "the page shows a line that was not printed:\n" << line;
    EXPECT_EQ(shape_of(printed[at]), shape_of(line));
    ++at;
    any = false;
  }
  EXPECT_TRUE(any || at == printed.size()) << "more was printed than the page shows";
}

class PageCommands : public ::testing::TestWithParam<Shown> {
 protected:
  // The tutorial's reader has lockrun installed, and a build folder with the tutorial's program.
  void SetUp() override {
    fs::create_directories(folder_ / "bin");
    fs::create_symlink(LOCKSTEP_BUILD_ROOT "/launcher/lockrun", folder_ / "bin/lockrun");
    if (GetParam().page == "docs/tutorial.md") {
      fs::create_directory(folder_ / "build");
      fs::create_symlink(LOCKSTEP_BUILD_ROOT "/tests/docs/rings", folder_ / "build/rings");
    } else {
      fs::create_directory_symlink(LOCKSTEP_BUILD_ROOT, folder_ / "build");
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("page-commands-" + std::to_string(::getpid()));
};

TEST_P(PageCommands, Run) {
  const auto& [page, block] = GetParam();
  const Session session = session_of(block);
  Child shell({"env", "-C", folder_.string(), "PATH=" + (folder_ / "bin").string() + ":" + std::getenv("PATH"), "sh",
               "-e", "-c", session.commands});
  ASSERT_EQ(shell.wait(std::chrono::minutes(1)), 0) << page << "\n" << session.commands << shell.errors();
  SCOPED_TRACE(page + ": " + session.commands + shell.output());
  expect_shape(lines_of(shell.output()), session.output);
}

INSTANTIATE_TEST_SUITE_P(Docs, PageCommands, ::testing::ValuesIn(blocks_to_run()), [](const auto& tested) {
  return replace_matches(tested.param.page, "[^A-Za-z]", "_") + std::to_string(tested.index);
});

TEST(PageCommandList, HasNoEntryThatNoPageShows) {
  std::set<std::string> first_lines;
  for (const Shown& shown : blocks_with_commands()) first_lines.insert(first_line(shown.block.text));
  for (const auto& [line, reason] : kNotRunHere) EXPECT_EQ(first_lines.count(line), 1u) << line << "\n" << reason;
  EXPECT_GE(blocks_to_run().size(), 3u);
}

}  // namespace
}  // namespace lockstep::testing
