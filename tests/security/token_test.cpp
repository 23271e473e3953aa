// The token does not appear anywhere: not in a command line, not in a job's most verbose output, not in its flight
// records.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSecret = "Xq7-not-to-be-seen-anywhere";

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Token, IsNowhereToBeSeen) {
  std::string pattern = (fs::temp_directory_path() / "lockstep-token-XXXXXX").string();
  const fs::path folder = mkdtemp(pattern.data());
  for (const char* transport : {"shm", "tcp"}) {
    Child job({LOCKRUN, "--no-fold", "--flight-dir", folder.string(), "-n", "3", FLIGHT_RANK, "hang"},
              {.environment = {
                   {"LOCKSTEP_TOKEN", kSecret}, {"LOCKSTEP_LOG_LEVEL", "trace"}, {"LOCKSTEP_TRANSPORT", transport}}});
    ASSERT_TRUE(job.wait_for_output("rank 0 has three"));
    int command_lines = 0;
    for (const pid_t process : job.alive()) {
      const std::string words = read("/proc/" + std::to_string(process) + "/cmdline");
      EXPECT_THAT(words, Not(HasSubstr(kSecret)));
      command_lines += words.empty() ? 0 : 1;
    }
    EXPECT_GE(command_lines, 3);
    EXPECT_NE(job.wait(), 0);
    EXPECT_THAT(job.output() + job.errors(), Not(HasSubstr(kSecret)));
    int records = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      EXPECT_THAT(read(entry.path()), Not(HasSubstr(kSecret)));
      ++records;
    }
    EXPECT_EQ(records, 3);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
