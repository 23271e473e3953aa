// From a failing job to the sentence that explains it: real ranks, real records, lockrun diagnose.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/faults/child.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Diagnosed : public ::testing::TestWithParam<const char*> {
 protected:
  Diagnosed() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-diagnosed-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Diagnosed() override { fs::remove_all(folder_); }

  ChildOptions options() const {
    return {.environment = {{"LOCKSTEP_FLIGHT_DIR", folder_.string()}, {"LOCKSTEP_TRANSPORT", GetParam()}}};
  }
  std::string diagnosis_after(const std::string& how) const {
    Child job({LOCKRUN, "--no-fold", "-n", "3", FLIGHT_RANK, how}, options());
    EXPECT_NE(job.wait(), 0);
    job_said = job.errors();
    return diagnosis();
  }
  std::string diagnosis() const {
    Child explanation({LOCKRUN, "diagnose", folder_.string()});
    EXPECT_EQ(explanation.wait(), 0) << explanation.errors();
    return explanation.output();
  }

  fs::path folder_;
  mutable std::string job_said;
};
INSTANTIATE_TEST_SUITE_P(Wires, Diagnosed, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

std::string without_numbers(const std::string& text) {
  return replace_matches(replace_matches(text, "on host [^)]*", "on host"), "[0-9.]+", "N");
}

// The diagnosis that docs/troubleshooting.md shows.
std::string pages_example() {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_ROOT) + "/docs/troubleshooting.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}}, begin = "$ lockrun diagnose records\n";
  const std::size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("```", at) - at);
}

TEST_P(Diagnosed, ARankThatHangsInItsOwnCode) {
  const std::string said = diagnosis_after("hang");
  const auto until_the_errors = [](const std::string& text) {
    return without_numbers(text.substr(0, text.find(" before its record was written")));
  };
  EXPECT_EQ(until_the_errors(said), until_the_errors(pages_example()));
  EXPECT_THAT(said, HasSubstr("3 of 3 ranks left a record"));
  EXPECT_THAT(
      said,
      HasSubstr(
          "rank 1 has not called all_reduce #4 (bucket 3, float32 x 1000, avg); ranks 0, 2 have waited in it for 2."))
      << job_said;
  EXPECT_THAT(said, HasSubstr("rank 1's last operation, all_reduce #3 (bucket 2, float32 x 1000, avg), finished"));
  EXPECT_THAT(job_said, HasSubstr("lockrun diagnose " + folder_.string()));
}

// The record is requested while the job hangs; nothing has failed yet, and the request makes nothing fail.
TEST_P(Diagnosed, AJobThatIsAskedBySignal) {
  Child job({LOCKRUN, "--no-fold", "--flight-dir", folder_.string(), "-n", "2", FLIGHT_RANK, "wait"},
            {.environment = {{"LOCKSTEP_TRANSPORT", GetParam()}}});
  ASSERT_TRUE(job.wait_for_output("rank 0 is in the fourth"));
  ASSERT_TRUE(job.wait_for_output("rank 1 is elsewhere"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(job.pid(), SIGUSR1);
  const auto written = [&] { return fs::exists(folder_ / "rank0.json") && fs::exists(folder_ / "rank1.json"); };
  for (int i = 0; i < 500 && !written(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(written()) << job.errors();
  EXPECT_THAT(
      diagnosis(),
      HasSubstr("rank 1 has not called all_reduce #4 (bucket 3, float32 x 1000, avg); rank 0 has waited in it"));
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: SIGUSR1: requested the flight records of 2 of 2 ranks here"));
  EXPECT_THAT(job.errors(),
              HasSubstr("SIGUSR1: rank 0, group world: in all_reduce #4 (bucket 3, float32 x 1000, avg) for"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
}

TEST_P(Diagnosed, ARankThatMakesAnotherCall) {
  const std::string said = diagnosis_after("other");
  EXPECT_THAT(said, HasSubstr("the ranks make different calls at #4:"));
  EXPECT_THAT(said, HasSubstr("    ranks 0, 2: all_reduce #4 (bucket 3, float32 x 1000, avg)\n"));
  EXPECT_THAT(said, HasSubstr("    rank 1: broadcast #4 (float32 x 1000, root 0)\n"));
}

TEST_P(Diagnosed, ARankThatIsKilled) {
  const std::string said = diagnosis_after("kill");
  EXPECT_THAT(said, HasSubstr("2 of 3 ranks left a record, on 1 host; none from rank 1"));
  EXPECT_THAT(said, HasSubstr("rank 1 left no record"));
  EXPECT_THAT(said, HasSubstr("all_reduce #4 (bucket 3, float32 x 1000, avg)"));
}

}  // namespace
}  // namespace lockstep::testing
