// The command lockrun diagnose on folders, some of which hold damaged records.
#include "src/diagnose/diagnose_command.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <string>

#include "src/diagnose/report.h"
#include "tests/diagnose/invented_records.h"
#include "tests/support/message_of.h"

namespace lockstep::diagnose {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-diagnose-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~FolderTest() override { fs::remove_all(folder_); }
  void put(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string said() {
    return message_of([&] { diagnose_command({folder_.string()}); });
  }
  fs::path folder_;
};

TEST_F(FolderTest, WhatCannotBeUsedIsSaidWithTheRemedy) {
  EXPECT_THAT(message_of([&] { diagnose_command({(folder_ / "none").string()}); }),
              HasSubstr("none is not a folder with flight records"));
  EXPECT_THAT(said(),
              HasSubstr("holds no flight record (rank<R>.json): start the job with `lockrun --flight-dir DIR`"));
  put("rank0.json", "{\"version\": 1, ");
  EXPECT_THAT(said(), HasSubstr("rank0.json: incomplete flight record (broken JSON"));
  put("rank1.json", to_json(rank_of(1, 2, 3)));
  put("notes.json", "not ours");
  const std::string report = diagnose_command({folder_.string()});
  EXPECT_THAT(report, HasSubstr("1 of 2 ranks left a record"));
  EXPECT_THAT(report, HasSubstr("rank0.json: incomplete flight record"));
  EXPECT_THAT(report, Not(HasSubstr("notes.json")));
}

// A damaged number must not cause an allocation: neither the job's size, nor those of its groups, nor their total.
TEST_F(FolderTest, AWorldThatCannotBeIsNoRecord) {
  put("rank0.json", to_json(rank_of(0, 2, 3)));
  FlightDump dump = rank_of(1, 4, 3);
  dump.world_size = std::numeric_limits<int>::max();
  put("rank1.json", to_json(dump));
  dump = rank_of(2, 4, 3);
  dump.groups[0].world_size = std::numeric_limits<int>::max();
  put("rank2.json", to_json(dump));
  dump = rank_of(3, 4096, 0);
  for (int i = 0; i < 5000; ++i) dump.groups.push_back({.name = std::to_string(i), .world_size = 4096});
  put("rank3.json", to_json(dump));
  const std::string report = diagnose_command({folder_.string()});
  EXPECT_THAT(report, HasSubstr("1 of 2 ranks left a record"));
  EXPECT_THAT(
      report,
      HasSubstr("rank1.json: not a flight record that can be read: a world of 2147483647 ranks, expected 1..4096"));
  EXPECT_THAT(report,
              HasSubstr("rank2.json: not a flight record that can be read: group world: a world of 2147483647 ranks"));
  EXPECT_THAT(report, HasSubstr("rank3.json: not a flight record that can be read: its 5001 groups"));
}

TEST_F(FolderTest, OfManyRanksTheFirstAreNamed) {
  put("rank0.json", to_json(rank_of(0, 4096, 3)));
  const std::string report = diagnose_command({folder_.string()});
  EXPECT_THAT(report, HasSubstr("none from ranks 1, 2, 3, 4, "));
  EXPECT_THAT(report, HasSubstr(", 32 and 4063 more"));
  EXPECT_LT(report.size(), 2000u);
}

// Opening a FIFO blocks until a process opens its other end; this call must not block.
TEST_F(FolderTest, WhatIsNoPlainFileIsLeftOutAtOnce) {
  put("rank0.json", to_json(rank_of(0, 2, 3)));
  const std::string fifo = folder_ / "rank1.json";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  fs::create_directory(folder_ / "rank2.json");
  fs::create_symlink("/dev/zero", folder_ / "rank3.json");
  put("rank4.json", "{");
  std::error_code no_such_files;
  fs::resize_file(folder_ / "rank4.json", std::uintmax_t{1} << 40,
                  no_such_files);  // a sparse file: it takes no room on the disk
  auto answer = std::async(std::launch::async, [&] { return diagnose_command({folder_.string()}); });
  if (answer.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
    ADD_FAILURE() << "it waits for the FIFO's other end";
    ::close(::open(fifo.c_str(), O_RDWR | O_NONBLOCK));
  }
  const std::string report = answer.get();
  EXPECT_THAT(report, HasSubstr("rank1.json: is a FIFO"));
  EXPECT_THAT(report, HasSubstr("rank2.json: is a folder"));
  EXPECT_THAT(report, HasSubstr("rank3.json: is a character device"));
  if (!no_such_files) {
    EXPECT_THAT(report, HasSubstr("rank4.json: it has 1099511627776 bytes, a flight record has at most "));
  }
}

TEST_F(FolderTest, JsonSaysTheSame) {
  FlightDump waiting = rank_of(0, 2, 3);
  enter(waiting, 4, kStart + 50 * kSecond);
  put("rank0.json", to_json(waiting));
  put("rank1.json", to_json(rank_of(1, 2, 3)));
  const std::string report = diagnose_command({folder_.string(), "--json"});
  EXPECT_THAT(report, HasSubstr("\"kind\": \"not_called\""));
  EXPECT_THAT(report, HasSubstr("\"world_size\": 2"));
}

TEST(DiagnoseCommand, WrongWordsAreRefused) {
  EXPECT_THAT(message_of([] { diagnose_command({}); }), HasSubstr("the folder is missing"));
  EXPECT_THAT(message_of([] { diagnose_command({"a", "b"}); }), HasSubstr("got a and b"));
  EXPECT_THAT(message_of([] { diagnose_command({"--jsn", "a"}); }), HasSubstr("unknown flag --jsn"));
  EXPECT_THAT(diagnose_command({"--help"}), HasSubstr("usage: lockrun diagnose DIR"));
}

}  // namespace
}  // namespace lockstep::diagnose
