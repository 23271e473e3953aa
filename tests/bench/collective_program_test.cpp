// bench/all_reduce and bench/collective as users run them: real processes, small sizes, every flag. Speed is not
// asserted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr auto kDeadline = 60s;

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// A file that is removed after the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& suffix) {
    static int count = 0;
    path_ = ::testing::TempDir() + "bench-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + suffix;
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

int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

struct Results {
  std::vector<json> rows;
  json summary;
};

// Parses --json's lines; `output` may have a launcher's prefixes.
Results parse(const std::string& output) {
  Results results;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find('{');
    if (begin == std::string::npos) continue;
    const json object = json::parse(line.substr(begin), nullptr, false);
    EXPECT_FALSE(object.is_discarded()) << line;
    if (object.contains("bytes"))
      results.rows.push_back(object);
    else
      results.summary = object;
  }
  return results;
}

Results run(const Words& command, const ChildOptions& options = {}) {
  Child child(command, options);
  EXPECT_EQ(child.wait(kDeadline), 0) << child.output() << child.errors();
  return parse(child.output());
}

void expect_right(const Results& results, std::size_t rows, int ranks) {
  ASSERT_EQ(results.rows.size(), rows);
  for (const json& row : results.rows) {
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_EQ(row["same_bits"], true) << row;
    EXPECT_EQ(row["ranks"], ranks) << row;
    EXPECT_GT(row["time_us"], 0) << row;
  }
  EXPECT_EQ(results.summary["wrong"], 0);
  EXPECT_EQ(results.summary["same_bits"], true);
}

const Words kSmall = {"-b", "24", "-e", "24K", "-f", "32", "--rounds", "2", "--check", "--json"};  // 3 sizes

class EveryCollective : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryCollective, IsRightOutOfPlaceInPlaceAndOnPlainMemory) {
  const Words start = Words{COLLECTIVE, "--op", GetParam(), "--ranks", "3"} + kSmall;
  for (const Words& more : {Words{}, Words{"--in-place"}, Words{"--plain"}}) {
    const Results results = run(start + more);
    expect_right(results, 3, 3);
    EXPECT_EQ(results.rows.at(0)["collective"], GetParam());
    EXPECT_EQ(results.rows.at(0)["bytes"], 24);
    EXPECT_EQ(results.rows.at(0)["checked"], "all");
    const bool has_bound = more.empty() || (more[0] == "--in-place" && std::string(GetParam()) != "all_to_all");
    for (const json& row : results.rows) EXPECT_EQ(row["bound_percent"].is_number(), has_bound) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryCollective,
                         ::testing::Values("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
                                           "reduce_scatter", "all_to_all", "sendrecv"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(Collective, BarrierHasOneRowAndNoData) {
  const Results results = run({COLLECTIVE, "--op", "barrier", "--ranks", "2", "--rounds", "3", "--json"});
  ASSERT_EQ(results.rows.size(), 1u);
  EXPECT_EQ(results.rows[0]["bytes"], 0);
  EXPECT_TRUE(results.rows[0]["same_bits"].is_null());
  EXPECT_GT(results.rows[0]["time_us"], 0);
}

TEST(Collective, RootsReductionsAndTypesArePassedOn) {
  const Words start = Words{COLLECTIVE, "--ranks", "3"} + kSmall;
  for (const Words& more : {Words{"--op", "reduce", "--root", "2", "--redop", "bit_xor", "--dtype", "uint8"},
                            Words{"--op", "reduce_scatter", "--redop", "premul_sum", "--dtype", "float16"},
                            Words{"--op", "all_reduce", "--redop", "product", "--dtype", "int64"},
                            Words{"--op", "all_reduce", "--redop", "avg", "--dtype", "bfloat16"},
                            Words{"--op", "all_reduce", "--redop", "min", "--dtype", "int8"},
                            Words{"--op", "all_reduce", "--redop", "max", "--dtype", "float64"},
                            Words{"--op", "broadcast", "--root", "1", "--dtype", "int32"}}) {
    const Results results = run(start + more);
    expect_right(results, 3, 3);
    for (std::size_t i = 0; i < more.size(); i += 2) {
      const std::string key = more[i].substr(2);  // a flag has the name of its column
      const json value = key == "root" ? json(std::stoi(more[i + 1])) : json(more[i + 1]);
      EXPECT_EQ(results.rows.at(0)[key == "op" ? "collective" : key], value);
    }
  }
}

TEST(AllReduce, TransportsOpsAndASingleRank) {
  expect_right(run(Words{ALL_REDUCE, "--transport", "tcp", "--ranks", "2", "--op", "max"} + kSmall), 3, 2);
  expect_right(
      run(Words{ALL_REDUCE, "--transport", "shm", "--ranks", "2", "--backend", "host", "--redop", "sum"} + kSmall), 3,
      2);
  expect_right(run(Words{ALL_REDUCE, "--out-of-place"} + kSmall), 3, 2);
  expect_right(run(Words{ALL_REDUCE, "--ranks", "1"} + kSmall), 3, 1);
  EXPECT_EQ(run({ALL_REDUCE, "-b", "4", "-e", "4", "--rounds", "2", "--json"}).rows.at(0)["checked"], "ends");
}

TEST(AllReduce, TheTableHasTheUsualColumns) {
  Child child({ALL_REDUCE, "-b", "1K", "-e", "4K", "--rounds", "2", "--check"});
  ASSERT_EQ(child.wait(kDeadline), 0) << child.errors();
  std::istringstream lines(child.output());
  std::string title, head, units, row;
  std::getline(lines, title);
  std::getline(lines, head);
  std::getline(lines, units);
  std::getline(lines, row);
  EXPECT_THAT(title,
              AllOf(HasSubstr("all_reduce"), HasSubstr("2 ranks"), HasSubstr("registered"), HasSubstr("in place")));
  std::istringstream words(head), values(row);
  const Words names{std::istream_iterator<std::string>(words), {}},
      cells{std::istream_iterator<std::string>(values), {}};
  EXPECT_THAT(names, ::testing::ElementsAre("size", "count", "type", "redop", "root", "time", "algbw", "busbw",
                                            "#wrong", "p50", "p90", "p99", "spread", "skew", "transfer", "bound"));
  ASSERT_EQ(cells.size(), names.size()) << row;
  EXPECT_EQ(cells[0], "1024");
  EXPECT_EQ(cells[1], "256");
  EXPECT_EQ(cells[8], "0");
  EXPECT_THAT(child.output(), AllOf(HasSubstr("# fit: "), HasSubstr("# wrong elements: 0 (all were checked)"),
                                    HasSubstr("# same bits in all repeats and on all ranks: yes")));
}

TEST(AllReduce, TheJsonFileSaysWhereAndHowItWasMeasured) {
  const TemporaryFile file(".json");
  run(Words{ALL_REDUCE, "--json-file", file.path()} + kSmall,
      {.environment = {{"LOCKSTEP_TOKEN", "a secret"}, {"LOCKSTEP_TIMEOUT_S", "77"}}});
  const json document = json::parse(file.text());
  const json& environment = document["environment"];
  for (const char* key : {"date", "version", "commit", "compiler", "build_type", "cpu", "host_cores", "kernel", "ranks",
                          "pinning", "backend", "transport", "load_average"})
    EXPECT_TRUE(environment.contains(key)) << key;
  EXPECT_EQ(environment["ranks"], 2);
  EXPECT_EQ(environment["pinning"].size(), 2u);
  EXPECT_EQ(environment["variables"]["LOCKSTEP_TIMEOUT_S"], "77");
  EXPECT_THAT(file.text(), ::testing::Not(HasSubstr("a secret")));
  EXPECT_EQ(document["settings"]["memory"], "registered");
  EXPECT_EQ(document["rows"].size(), 3u);
  EXPECT_TRUE(document.contains("fit"));
  EXPECT_EQ(document["same_bits"], true);
  EXPECT_EQ(document["wrong"], 0);
}

TEST(Plot, DrawsTheRunOrSeveralResultFiles) {
  const TemporaryFile first(".json"), second(".json"), own(".svg"), both(".svg");
  run(Words{ALL_REDUCE, "--json-file", first.path(), "--plot", own.path()} + kSmall);
  run(Words{ALL_REDUCE, "--plain", "--json-file", second.path()} + kSmall);
  EXPECT_THAT(own.text(), AllOf(::testing::StartsWith("<svg"), HasSubstr("2 ranks, host over "), HasSubstr("KiB"),
                                HasSubstr("</svg>")));
  Child child({ALL_REDUCE, "--plot", both.path(), first.path(), second.path()});
  EXPECT_EQ(child.wait(kDeadline), 0) << child.errors();
  EXPECT_EQ(child.output(), "") << "it draws files and measures nothing";
  for (const TemporaryFile* file : {&first, &second})
    EXPECT_THAT(both.text(), HasSubstr(std::filesystem::path(file->path()).stem().string()));
  EXPECT_EQ(count(both.text(), "<polyline"), 2);
}

TEST(Plot, ReportsAFileThatIsNotAResult) {
  const TemporaryFile text(".json"), picture(".svg");
  std::ofstream(text.path()) << "{}";
  Child other({ALL_REDUCE, "--plot", picture.path(), text.path()}),
      missing({ALL_REDUCE, "--plot", picture.path(), "/does/not/exist.json"});
  EXPECT_EQ(other.wait(kDeadline), 2);
  EXPECT_THAT(other.errors(), AllOf(HasSubstr(text.path()), HasSubstr("--json-file")));
  EXPECT_EQ(missing.wait(kDeadline), 1);
  EXPECT_THAT(missing.errors(), HasSubstr("/does/not/exist.json: cannot be read"));
}

TEST(AllReduce, OverlapReportsTheCostOfEach) {
  const Words overlap = {ALL_REDUCE, "--overlap", "-e", "64K", "--rounds", "3"};
  const json result = run(overlap + Words{"--json"}).summary["overlap"];
  for (const char* key :
       {"product_alone_us", "product_overlapped_us", "all_reduce_alone_us", "all_reduce_overlapped_us", "together_us"})
    EXPECT_GT(result[key], 0) << key;
  for (const char* key : {"product_cost_percent", "all_reduce_cost_percent", "hidden_percent"})
    EXPECT_TRUE(result[key].is_number()) << key;
  EXPECT_EQ(result["bytes"], 65536);
  Child people(overlap);
  EXPECT_EQ(people.wait(kDeadline), 0) << people.errors();
  EXPECT_THAT(people.output(),
              AllOf(HasSubstr("product"), HasSubstr("all_reduce of 64 KiB"), HasSubstr("both together")));
}

// The tuned values depend on the machine and its load, but the table must be one that a group can load.
TEST(Tune, WritesATableThatAGroupLoads) {
  const TemporaryFile file(".json");
  Child child({ALL_REDUCE, "--ranks", "2", "--tune", file.path()});
  EXPECT_EQ(child.wait(2 * kDeadline), 0) << child.errors();
  EXPECT_THAT(child.output(), HasSubstr("load it with LOCKSTEP_TUNING=" + file.path()));
  const json table = json::parse(file.text());
  EXPECT_EQ(table["made_on"]["ranks"], 2);
  for (const char* key : {"line_bytes", "flat_bytes", "tile_bytes", "reduce_order"})
    EXPECT_TRUE(table.contains(key)) << key;
  for (const char* ranks : {"2", "3"}) {
    Child user(Words{ALL_REDUCE, "--ranks", ranks, "--plain"} + kSmall,
               {.environment = {{"LOCKSTEP_TUNING", file.path()}}});
    EXPECT_EQ(user.wait(kDeadline), 0) << user.errors();
    EXPECT_EQ(user.errors().find("was made with 2 ranks") != std::string::npos, ranks[0] == '3') << user.errors();
  }
}

TEST(Compare, WithoutPeersSaysHowToInstallThem) {
  if (std::system("command -v python3 > /dev/null 2>&1") != 0) GTEST_SKIP() << "python3 is not installed";
  Child child({ALL_REDUCE, "--compare"}, {.environment = {{"PEERS_BUILD", "/does/not/exist"}}});
  EXPECT_EQ(child.wait(kDeadline), 1);
  EXPECT_THAT(child.errors(), AllOf(HasSubstr("/does/not/exist"), HasSubstr("bench/peers/setup")));
}

// Only one peer is started: Gloo's program takes seconds to start, and all are started in the same way.
TEST(Compare, PrintsRatios) {
  const char* peers = std::getenv("PEERS_BUILD");
  if (peers == nullptr || !std::filesystem::exists(std::string(peers) + "/all_reduce_mpi"))
    GTEST_SKIP() << "PEERS_BUILD names no folder in which bench/peers/setup has installed the peers";
  Child child({ALL_REDUCE, "--compare=openmpi", "-b", "4", "-e", "1K", "-f", "16", "--rounds", "1", "--json"});
  EXPECT_EQ(child.wait(kDeadline), 0) << child.errors();
  std::set<std::string> contestants;
  std::istringstream lines(child.output());
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line);
    EXPECT_GT(row["ratio"], 0) << line;
    contestants.insert(row["contestant"]);
  }
  EXPECT_EQ(contestants, (std::set<std::string>{"lockstep", "lockstep --plain", "openmpi"}));
}

TEST(Launchers, LockrunsRanksAreUsed) {
  expect_right(run(Words{LOCKRUN, "-n", "3", ALL_REDUCE} + kSmall), 3, 3);
  expect_right(run(Words{LOCKRUN, "-n", "3", COLLECTIVE, "--op", "all_gather", "--ranks", "3"} + kSmall), 3, 3);
  Child other({LOCKRUN, "-n", "2", ALL_REDUCE, "--ranks", "3"});
  EXPECT_EQ(other.wait(kDeadline), 2);
  EXPECT_THAT(other.errors(), HasSubstr("--ranks 3, but the launcher has started 2"));
}

// mpirun sometimes drops the ranks' last output, so results are read from the file.
TEST(Launchers, UsesTheRanksOfMpirun) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFile file(".json");
  const ChildOptions as_root = {
      .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}};
  Child child(Words{"mpirun", "--oversubscribe", "-n", "3", ALL_REDUCE, "--json-file", file.path()} + kSmall, as_root);
  ASSERT_EQ(child.wait(kDeadline), 0) << child.errors();
  const json document = json::parse(file.text());
  EXPECT_EQ(document["environment"]["ranks"], 3);
  EXPECT_EQ(document["rows"].size(), 3u);
  EXPECT_EQ(document["wrong"], 0);
  Child other({"mpirun", "--oversubscribe", "-n", "2", ALL_REDUCE, "--ranks", "3"}, as_root);
  EXPECT_EQ(other.wait(kDeadline), 2);
}

TEST(Launchers, TheMpiBackendIsMeasuredUnderMpirun) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFile file(".json");
  Child child(Words{"mpirun", "--oversubscribe", "-n", "2", COLLECTIVE, "--op", "reduce_scatter", "--backend", "mpi",
                    "--json-file", file.path()} +
                  kSmall,
              {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}});
  const int code = child.wait(kDeadline);
  if (code == 2 && child.errors().find("is not in this build") != std::string::npos)
    GTEST_SKIP() << "this build has no mpi backend";
  ASSERT_EQ(code, 0) << child.errors();
  const json document = json::parse(file.text());
  EXPECT_EQ(document["environment"]["backend"], "mpi");
  EXPECT_EQ(document["wrong"], 0);
  EXPECT_EQ(document["rows"].size(), 3u);
}

struct BadStart {
  const char* name;
  Words command;
  const char* said;
};

class BadFlags : public ::testing::TestWithParam<BadStart> {};

TEST_P(BadFlags, AreErrorsWithAReason) {
  Child child(GetParam().command);
  EXPECT_EQ(child.wait(kDeadline), 2) << child.output();
  EXPECT_THAT(child.errors(), HasSubstr(GetParam().said));
  EXPECT_EQ(child.output(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Flags, BadFlags,
    ::testing::Values(
        BadStart{"unknown_flag", {ALL_REDUCE, "--fast"}, "fast"},
        BadStart{
            "reduction", {ALL_REDUCE, "--op", "median"}, "--op: 'median' is not a reduction; expected one of sum, avg"},
        BadStart{"two_reductions", {ALL_REDUCE, "--op", "sum", "--redop", "max"}, "disagree"},
        BadStart{"collective", {COLLECTIVE, "--op", "scan"}, "'scan' is not a collective; expected one of all_reduce"},
        BadStart{"type", {ALL_REDUCE, "--dtype", "float8"}, "--dtype: 'float8'"},
        BadStart{"bits_of_floats", {ALL_REDUCE, "--op", "bit_or"}, "bitwise reductions need integers"},
        BadStart{"average_of_integers", {ALL_REDUCE, "--op", "avg", "--dtype", "int32"}, "floating point"},
        BadStart{"reduction_of_a_gather", {COLLECTIVE, "--op", "gather", "--redop", "sum"}, "gather reduces nothing"},
        BadStart{"root_of_an_all_gather", {COLLECTIVE, "--op", "all_gather", "--root", "1"}, "all_gather has no root"},
        BadStart{"root_outside", {COLLECTIVE, "--op", "reduce", "--root", "2"}, "--root 2: the ranks are 0 to 1"},
        BadStart{"pair_of_one", {COLLECTIVE, "--op", "sendrecv", "--ranks", "1"}, "takes two"},
        BadStart{"size", {ALL_REDUCE, "-b", "four"}, "-b: 'four'"},
        BadStart{"sizes_that_fall", {ALL_REDUCE, "-b", "8", "-e", "4"}, "0 < -b <= -e"},
        BadStart{"factor", {ALL_REDUCE, "-f", "1"}, "-f 1"},
        BadStart{"no_ranks", {ALL_REDUCE, "--ranks", "0"}, "--ranks 0"},
        BadStart{"both_places", {ALL_REDUCE, "--in-place", "--out-of-place"}, "exclude each other"},
        BadStart{"two_buffers_of_a_broadcast", {COLLECTIVE, "--op", "broadcast", "--out-of-place"}, "only one buffer"},
        BadStart{"backend", {ALL_REDUCE, "--backend", "carrier-pigeon"}, "carrier-pigeon"},
        BadStart{"transport", {ALL_REDUCE, "--transport", "smoke"}, "smoke"},
        BadStart{"file_nowhere",
                 {ALL_REDUCE, "--json-file", "/does/not/exist/r.json"},
                 "/does/not/exist/r.json: cannot be written"},
        BadStart{"results_without_plot", {ALL_REDUCE, "results.json"}, "--plot"},
        BadStart{"plot_of_a_barrier", {COLLECTIVE, "--op", "barrier", "--plot", "barrier.svg"}, "no curve"},
        BadStart{"plot_nowhere",
                 {ALL_REDUCE, "--plot", "/does/not/exist/r.svg"},
                 "/does/not/exist/r.svg: cannot be written"},
        BadStart{"tuning_of_tcp",
                 {ALL_REDUCE, "--tune", "t.json", "--transport", "tcp"},
                 "leave --backend and --transport out"},
        BadStart{
            "tuning_of_one", {ALL_REDUCE, "--tune", "t.json", "--ranks", "1"}, "a single rank has nothing to tune"},
        BadStart{"overlap_of_a_gather", {COLLECTIVE, "--op", "gather", "--overlap"}, "--overlap is for all_reduce"},
        BadStart{"compare_of_a_gather", {COLLECTIVE, "--op", "gather", "--compare"}, "--compare"},
        BadStart{"compare_under_lockrun", {LOCKRUN, "-n", "1", ALL_REDUCE, "--compare"}, "without a launcher"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace lockstep::testing
