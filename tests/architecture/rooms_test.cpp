// How the tree is divided: rooms with a README each, names that are used once, folders that know nothing of each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/architecture/source_text.h"
#include "tests/architecture/sources.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().generic_string(); }
std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

// -- rooms

TEST(Rooms, HaveAReadmeAndAtMostTwentyFiles) {
  std::map<std::string, int> files;
  visit_sources({"src"}, [&](const std::string& path, const std::string&) { ++files[folder_of(path)]; });
  EXPECT_GT(files.size(), 40U);
  for (const auto& [folder, count] : files) {
    EXPECT_LE(count, 20) << folder << ": divide it into rooms";
    const bool is_room = std::count(folder.begin(), folder.end(), '/') >= 2;  // src/<layer>/<room>
    if (!is_room) continue;
    const std::string readme = LOCKSTEP_SOURCE_ROOT "/" + folder + "/README.md";
    EXPECT_TRUE(fs::exists(readme) && fs::file_size(readme) > 60) << folder << " has no README.md of a few lines";
  }
}

// -- names

// The folders that have a file for each operator, layer or optimizer: it has the same name in all of them.
std::string family_of(const std::string& path) {
  const auto match = find_match(path, "^(kernels/[a-z]+|(?:include/lockstep|src)/(?:autograd|nn|optim))/");
  return match.empty() ? "" : replace_matches(match[1], "include/lockstep", "src");
}

// A public header and the private one of the same subject.
bool are_a_pair(const std::string& a, const std::string& b) {
  const auto of_public = find_match(a, "^include/lockstep/([a-z]+)/");
  return !of_public.empty() && b.rfind("src/" + of_public[1] + "/", 0) == 0;
}

bool may_share_a_name(const std::string& a, const std::string& b) {
  const std::string of_a = family_of(a), of_b = family_of(b);
  return (!of_a.empty() && !of_b.empty() && of_a != of_b) || are_a_pair(a, b) || are_a_pair(b, a);
}

TEST(FileNames, AreUsedOnce) {
  std::map<std::string, std::vector<std::string>> paths;
  visit_sources({"include", "src", "kernels", "launcher", "bench/lib"},
                [&](const std::string& path, const std::string&) { paths[name_of(path)].push_back(path); });
  for (const auto& [name, all] : paths)
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        EXPECT_TRUE(may_share_a_name(all[i], all[j])) << all[i] << " and " << all[j] << ": a search confuses them";
}

TEST(FileNames, OfAnOperatorMayBeTheSameInEachLayer) {
  EXPECT_TRUE(may_share_a_name("src/nn/layers/linear.cpp", "kernels/cuda/linear.cpp"));
  EXPECT_TRUE(may_share_a_name("include/lockstep/train/safetensors.h", "src/train/files/safetensors.h"));
  EXPECT_FALSE(may_share_a_name("src/nn/module/print.cpp", "src/tensor/print.cpp"));
  EXPECT_FALSE(may_share_a_name("src/nn/module/print.cpp", "src/nn/layers/print.cpp"));
}

// A build with CUDA, MPI or NCCL compiles files that others do not, so a wrong name shows late.
TEST(MesonFiles, NameFilesThatExist) {
  const fs::path root = LOCKSTEP_SOURCE_ROOT;
  int names = 0;
  for (const char* folder : {"src", "kernels", "launcher", "bench", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().filename() != "meson.build") continue;
      const std::string text = text_of_file(entry.path().string());
      for (const auto& match : find_matches(text, R"('([\w./]+/[\w.]+\.(?:cpp|cu))')")) {
        ++names;
        EXPECT_TRUE(fs::exists(entry.path().parent_path() / match[1])) << entry.path().string() << ": " << match[1];
      }
    }
  EXPECT_GT(names, 100);
}

// -- who knows whom

TEST(Bench, IncludesNothingOfTests) {
  visit_sources({"bench", "kernels"}, [&](const std::string& path, const std::string& text) {
    EXPECT_TRUE(find_matches_by_line(text, R"--(#[ \t]*include[ \t]*"tests/)--").empty()) << path;
  });
}

TEST(Launcher, HasTheCommandLineAlone) {
  const std::set<std::string> expected = {"command_line.cpp", "command_line.h", "main.cpp", "torchrun_flags.cpp",
                                          "torchrun_flags.h"};
  std::set<std::string> found;
  visit_sources({"launcher"}, [&](const std::string& path, const std::string&) { found.insert(name_of(path)); });
  EXPECT_EQ(found, expected) << "what lockrun does belongs into src/launch or src/diagnose";
}

// The left half is a program for one device. These name a rank all the same.
struct RankWord {
  std::string_view where, reason;
};
constexpr RankWord kRankWords[] = {
    {"include/lockstep/data/", "samplers deal the samples of an epoch to the ranks of a Place"},
    {"src/data/", "samplers deal the samples of an epoch to the ranks of a Place"},
    {"kernels/cpu/reference/reference_power", "the rank of a matrix"},
    {"kernels/cuda/power", "the rank of a matrix"},
    {"include/lockstep/core/place.h", "Place, which comm fills in and data reads"},
    {"include/lockstep/core/environment.h", "the names of a launcher's variables"},
    {"include/lockstep/core/log.h", "set_rank(): the prefix of log lines"},
    {"src/core/process/run_main.cpp", "the name of a launcher's variable"},
    {"src/core/base/log.cpp", "set_rank(): the prefix of log lines"},
    {"src/core/base/batch_position.h", "the loader's position, which ddp compares"},
    {"include/lockstep/core/device.h", "local_device(): the GPU of a local rank"},
    {"src/core/device/", "local_device(): the GPU of a local rank"},
    {"include/lockstep/nn/lora.h", "the rank of a matrix"},
    {"include/lockstep/nn/layers.h", "the rank of a matrix"},
    {"src/nn/layers/layers.cpp", "the rank of a matrix"},
    {"src/nn/layers/lora.cpp", "the rank of a matrix"},
    {"src/nn/layers/low_rank.h", "the rank of a matrix"},
};

// The code without its comments and literals.
std::string bare(const std::string& code) {
  std::vector<std::string> lines;
  std::istringstream stream(code);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const SourceText text(code);
  for (const auto& literal : text.literals()) {
    std::istringstream parts(literal.text);
    auto at = static_cast<std::size_t>(literal.line - 1);
    for (std::string part; std::getline(parts, part) && at < lines.size(); ++at)
      if (const std::size_t found = lines[at].find(part); !part.empty() && found != std::string::npos)
        lines[at].erase(found, part.size());
  }
  std::string joined;
  for (const std::string& line : lines) joined += replace_matches(line, "//.*", "") + "\n";
  return joined;
}

// The identifiers of code that name ranks: "rank", "of_ranks", "kWorldSize", but not "frank".
std::vector<std::string> rank_identifiers(const std::string& code) {
  std::vector<std::string> found;
  for (const auto& match : find_matches(bare(code), R"(\b\w*(?:[Rr]ank|[Ww]orld_?[Ss]ize)\w*)")) {
    const std::string& name = match[0];
    std::size_t at = name.find("rank");
    const bool is_part_of_a_word =
        at != std::string::npos && at > 0 && std::islower(static_cast<unsigned char>(name[at - 1])) != 0;
    if (!is_part_of_a_word) found.push_back(name);
  }
  return found;
}

TEST(LeftHalf, NamesNoRank) {
  std::set<std::string_view> needed;
  visit_sources({"include/lockstep/core", "include/lockstep/tensor", "include/lockstep/autograd", "include/lockstep/nn",
                 "include/lockstep/optim", "include/lockstep/data", "src/core", "src/tensor", "src/autograd", "src/nn",
                 "src/optim", "src/data", "kernels"},
                [&](const std::string& path, const std::string& text) {
                  const std::vector<std::string> found = rank_identifiers(text);
                  if (found.empty()) return;
                  const auto* const allowed =
                      std::find_if(std::begin(kRankWords), std::end(kRankWords),
                                   [&](const RankWord& each) { return path.rfind(each.where, 0) == 0; });
                  if (allowed == std::end(kRankWords))
                    ADD_FAILURE() << path << " names a rank: " << found.front();
                  else
                    needed.insert(allowed->where);
                });
  for (const RankWord& each : kRankWords)
    EXPECT_EQ(needed.count(each.where), 1U) << each.where << " names no rank any more";
}

TEST(LeftHalf, ARankIsNoticedInIdentifiersAlone) {
  EXPECT_EQ(rank_identifiers("int rank; f(of_ranks); kWorldSize; place.world_size;").size(), 4U);
  EXPECT_TRUE(rank_identifiers("int crank;  // rank\nf(\"rank 0\");").empty());
}

// -- one way to write it

TEST(Sources, ReturnNoCommaAndVoid) {
  visit_sources({"include", "src", "kernels", "launcher", "bench", "examples", "tests"},
                [&](const std::string& path, const std::string& text) {
                  EXPECT_TRUE(find_matches_by_line(text, R"(return [^"\n]*, void\(\);)").empty()) << path;
                });
}

}  // namespace
}  // namespace lockstep::testing
