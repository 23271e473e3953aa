// bench/simulate as users run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name, const std::string& text = "")
      : path_(::testing::TempDir() + "simulate-" + std::to_string(::getpid()) + "-" + name) {
    if (!text.empty()) std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

std::string run(Words flags) {
  flags.insert(flags.begin(), SIMULATE);
  Child child(flags);
  EXPECT_EQ(child.wait(), 0) << child.errors();
  return child.output();
}

std::string refusal(Words flags) {
  flags.insert(flags.begin(), SIMULATE);
  Child child(flags);
  EXPECT_EQ(child.wait(), 2) << child.output();
  EXPECT_EQ(child.output(), "");
  return child.errors();
}

std::vector<json> run_json(Words flags) {
  flags.push_back("--json");
  std::istringstream lines(run(flags));
  std::vector<json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
  return objects;
}

// Returns "" if every element is closed in order, attributes are quoted, and there is no stray '<' or '&'.
std::string xml_fault(const std::string& xml) {
  std::vector<std::string> open;
  bool had_root = false;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] == '&' && xml.substr(at, 9).find(';') == std::string::npos) return "stray & at " + std::to_string(at);
    if (xml[at] != '<') {
      if (open.empty() && !std::isspace(static_cast<unsigned char>(xml[at]))) return "text outside of the root";
      ++at;
      continue;
    }
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return "unclosed <";
    const std::string tag = xml.substr(at + 1, end - at - 1), name = tag.substr(0, tag.find_first_of(" /\n", 1));
    if (tag.find('<') != std::string::npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0)
      return "broken tag " + tag;
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return "unexpected " + tag;
      open.pop_back();
    } else {
      if (open.empty() && had_root) return "second root";
      had_root = true;
      if (tag.back() != '/') open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() && had_root ? "" : "not closed";
}

TEST(Simulate, TheTableSaysWhatItAssumesAndThatItIsAModel) {
  const std::string table = run({});
  EXPECT_THAT(
      table,
      AllOf(HasSubstr("a report of a model, not a promise"), HasSubstr("100 MiB of gradients in buckets of 25 MiB"),
            HasSubstr("between machines 15 us + bytes / 12.5 GB/s"), HasSubstr("hierarchical_ms"), HasSubstr("4096")));
}

TEST(Simulate, JsonHasARowForEveryNumberOfRanksAndTheConstants) {
  const auto objects =
      run_json({"--compute-ms", "50", "--bytes", "64M", "--bucket-bytes", "16M", "--ranks-per-node", "4"});
  ASSERT_EQ(objects.size(), 13u);
  int ranks = 2;
  for (std::size_t i = 0; i < 12; ++i, ranks *= 2) {
    EXPECT_EQ(objects[i]["ranks"], ranks);
    EXPECT_EQ(objects[i]["machines"], ranks <= 4 ? 1 : ranks / 4);
    for (const char* algorithm : {"ring", "hierarchical", "tree"})
      EXPECT_GE(objects[i][std::string(algorithm) + "_ms"], 50) << objects[i];
    EXPECT_LE(objects[i]["efficiency_percent"], 100);
    const std::string best = objects[i]["best"];
    for (const char* other : {"ring", "hierarchical", "tree"})
      EXPECT_LE(objects[i][best + "_ms"], objects[i][std::string(other) + "_ms"]);
  }
  EXPECT_EQ(objects[12]["model"]["gradient_bytes"], 64 << 20);
  EXPECT_EQ(objects[12]["caution"], "a report of a model, not a promise");
}

TEST(Simulate, OneBucketOnTwoRanksByHand) {
  // 1 MiB: a ring of 2 (100 us + 2^19 / 1e3 us) = 1.248576 ms after 10 ms.
  const auto objects = run_json({"--compute-ms", "10", "--bytes", "1M", "--alpha-us", "100", "--gbps", "1"});
  EXPECT_DOUBLE_EQ(objects[0]["ring_ms"], 11.249);
}

TEST(Simulate, ThePictureIsWellFormedAndHasAllCurves) {
  const TemporaryFile file("plot.svg");
  run({"--plot", file.path()});
  const std::string svg = file.text();
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, AllOf(HasSubstr(">ring<"), HasSubstr(">hierarchical<"), HasSubstr(">tree<"),
                         HasSubstr(">compute alone<"), HasSubstr(">4,096<"), HasSubstr("not a promise")));
  EXPECT_LT(svg.size(), 20u << 10);
}

TEST(Simulate, FindsXmlFaults) {
  EXPECT_EQ(xml_fault("<a><b c=\"1\"/>text &amp; more</a>\n"), "");
  for (const char* broken :
       {"", "<a>", "<a></b>", "<a></a><b/>", "<a>R&D</a>", "<a b=\"></a>", "<a>1 < 2</a>", "<a/>tail"})
    EXPECT_NE(xml_fault(broken), "") << broken;
}

TEST(Simulate, AFitStandsForTheMeasuredLine) {
  const TemporaryFile file(
      "fit.json", R"({"settings": {"collective": "all_reduce", "ranks": 4}, "fit": {"alpha_us": 8, "gbps": 3}})");
  const auto objects = run_json({"--fit", file.path()});
  EXPECT_DOUBLE_EQ(objects.back()["model"]["alpha_us"], 2);
  EXPECT_DOUBLE_EQ(objects.back()["model"]["gbps"], 4.5);
}

TEST(Simulate, FilesThatAreNoFitAreRefused) {
  const auto with = [](const std::string& text) {
    const TemporaryFile file("bad.json", text);
    return refusal({"--fit", file.path()});
  };
  EXPECT_THAT(with("not json"), HasSubstr("is not a file that bench/all_reduce --json-file has written"));
  EXPECT_THAT(with("[1]"), HasSubstr("is not a file that bench/all_reduce"));
  EXPECT_THAT(with(R"({"fit": null, "settings": {"collective": "broadcast", "ranks": 2}})"),
              HasSubstr("contains no all_reduce"));
  EXPECT_THAT(with(R"({"fit": null, "settings": {"collective": "all_reduce", "ranks": 2}})"),
              HasSubstr("measure small and large"));
  EXPECT_THAT(with(R"({"fit": {"alpha_us": -1, "gbps": 2}, "settings": {"collective": "all_reduce", "ranks": 2}})"),
              HasSubstr("measure small and large"));
  EXPECT_THAT(with(R"({"fit": {"alpha_us": 1, "gbps": 2}, "settings": {"collective": "all_reduce", "ranks": 1}})"),
              HasSubstr("measured with 1 ranks"));
  Child missing({SIMULATE, "--fit", "/nowhere.json"});
  EXPECT_EQ(missing.wait(), 1);
  EXPECT_THAT(missing.errors(), HasSubstr("/nowhere.json"));
}

TEST(Simulate, FlagsThatMakeNoSenseAreRefused) {
  for (const char* flag : {"--alpha-us", "--gbps", "--net-alpha-us", "--net-gbps", "--compute-ms", "--ranks-per-node"})
    for (const char* value : {"=0", "=-1", "=nan", "=1e300", "=3x", "=inf"})
      EXPECT_THAT(refusal({std::string(flag) + value}), AllOf(HasSubstr(flag), HasSubstr("above 0"))) << value;
  EXPECT_THAT(refusal({"--ranks-per-node", "2.5"}), HasSubstr("whole number"));
  EXPECT_THAT(refusal({"--bytes", "0"}), HasSubstr("--bytes"));
  EXPECT_THAT(refusal({"--bytes", "many"}), HasSubstr("'many' is not a number of bytes"));
  EXPECT_THAT(refusal({"--bytes", "9000000G"}), HasSubstr("--bytes"));
  EXPECT_THAT(refusal({"--bytes", "1G", "--bucket-bytes", "4"}), HasSubstr("more than 100,000 buckets"));
  EXPECT_THAT(refusal({"--fit", "x.json", "--gbps", "3"}), HasSubstr("leave one or the other out"));
  EXPECT_THAT(refusal({"--what"}), HasSubstr("what"));
  EXPECT_THAT(refusal({"word"}), HasSubstr("'word'"));
}

TEST(Simulate, SaysWhenManyGpusOnSeveralMachinesEqualFewInOne) {
  const std::string table = run({"--strategies"});
  EXPECT_THAT(table, AllOf(HasSubstr("# 8 GPUs in one machine, 16 on several; weak scaling"),
                           HasSubstr("a report of a model, not a promise"), HasSubstr("equal_at_gbit_per_s"),
                           HasSubstr("# ddp: 16 GPUs on 2, 4, 8, 16 machines equal 8 in one at "),
                           HasSubstr("# parameter_server: 16 GPUs on 2, 4, 8, 16 machines equal 8 in one at "),
                           HasSubstr("# mirrored: one process has one machine; among machines it is ddp")));
  // 1 MB in one bucket. 8 GPUs: 10,000 + 2 (3 + 87.5) us. 16 on 16 machines may take twice as long: 30 (15 + 62.5 / b).
  const auto objects = run_json({"--strategies", "--compute-ms", "10", "--bytes", "1000000", "--bucket-bytes",
                                 "1000000", "--alpha-us", "1", "--gbps", "10"});
  const auto row = std::find_if(objects.begin(), objects.end(), [](const json& each) {
    return each.value("strategy", "") == "ddp" && each["machines"] == 16;
  });
  ASSERT_NE(row, objects.end());
  const double most_us = 2 * (10'000 + 2 * (3 + 87.5)) - 10'000;
  EXPECT_NEAR((*row)["equal_at_gbit_per_s"].get<double>(), 8 * 62.5 / (most_us / 30 - 15), 0.05);
  EXPECT_EQ(objects.back()["model"]["scaling"], "weak");
  EXPECT_EQ(objects.back()["caution"], "a report of a model, not a promise");
  EXPECT_EQ(objects.back()["answers"].size(), 8u);
}

TEST(Simulate, StrongScalingGivesEachGpuLess) {
  const auto objects = run_json({"--strategies", "--scaling", "strong", "--compute-ms", "10", "--bytes", "4K"});
  double one = 0, several = 0;
  for (const json& each : objects)
    if (each.value("strategy", "") == "ddp")
      (each["gpus"] == 8 ? one : each["machines"] == 2 ? several : one) = each["step_ms"].get<double>();
  EXPECT_LT(several, 6) << "half of the compute, and hardly any communication";
}

TEST(Simulate, QuestionsThatMakeNoSenseAreRefused) {
  EXPECT_THAT(refusal({"--strategies", "--many", "8"}), HasSubstr("--many 8 GPUs on several machines: expected more"));
  EXPECT_THAT(refusal({"--strategies", "--scaling", "ideal"}), HasSubstr("--scaling 'ideal': expected weak or strong"));
  EXPECT_THAT(refusal({"--strategies", "--overlap", "2"}), HasSubstr("--overlap"));
  EXPECT_THAT(refusal({"--strategies", "--period", "1.5"}), HasSubstr("--period 1.5: expected a whole number"));
  EXPECT_THAT(refusal({"--strategies", "--servers", "-1"}), HasSubstr("--servers"));
  EXPECT_THAT(refusal({"--strategies", "--plot", "x.svg"}), HasSubstr("--plot is not for --strategies"));
}

TEST(Simulate, APictureThatCannotBeWrittenFailsWithThePath) {
  Child child({SIMULATE, "--plot", "/nowhere/plot.svg"});
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.errors(), AllOf(HasSubstr("/nowhere/plot.svg"), HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace lockstep::testing
