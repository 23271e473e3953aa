// SummaryWriter: when records reach the file, which ranks write, refused arguments, and full disks.
#include "lockstep/train/summary_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/nn/layers.h"
#include "tests/ddp/ranks.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/event_records.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::records_of;

class SummaryWriters : public ::testing::Test {
 protected:
  // Uses `now_` as its clock.
  SummaryWriter writer_of(int max_queue) {
    return SummaryWriter(folder_.path(), {.max_queue = max_queue,
                                          .flush_every = std::chrono::seconds(60),
                                          .clock = [this] { return now_; },
                                          .file_name = "events"});
  }
  std::size_t records() const { return records_of(folder_.path() + "/events").size(); }

  const Folder folder_;
  double now_ = 1000;
};

TEST_F(SummaryWriters, WriteWhenEnoughRecordsWaitOrTheLastWriteIsLongPast) {
  SummaryWriter writer = writer_of(3);
  EXPECT_EQ(writer.file(), folder_.path() + "/events");
  EXPECT_EQ(records(), 1u) << "the version is written immediately";
  writer.add_scalar("a", 1, 0), writer.add_scalar("a", 1, 1);
  EXPECT_EQ(records(), 1u);
  writer.add_scalar("a", 1, 2);
  EXPECT_EQ(records(), 4u);
  now_ += 59;
  writer.add_scalar("a", 1, 3);
  EXPECT_EQ(records(), 4u);
  now_ += 1;
  writer.add_scalar("a", 1, 4);
  EXPECT_EQ(records(), 6u);
  now_ -= 5000;
  writer.add_scalar("a", 1, 5);
  EXPECT_EQ(records(), 7u) << "a clock that was set back delays nothing";
  writer.add_scalar("a", 1, 6);
  writer.flush();
  EXPECT_EQ(records(), 8u);
  writer.add_scalar("a", 1, 7);
  writer.close();
  EXPECT_EQ(records(), 9u);
  writer.close();
  EXPECT_THAT(message_of([&] { writer.add_scalar("a", 1, 8); }),
              AllOf(HasSubstr("/events"), HasSubstr("the writer is closed")));
}

TEST_F(SummaryWriters, WriteTheRestInTheDestructor) {
  {
    SummaryWriter first = writer_of(100);
    first.add_scalar("a", 1, 0);
    SummaryWriter second = std::move(first);
    second.add_scalar("a", 1, 1);
    EXPECT_FALSE(first.writes());  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(records(), 1u);
  }
  EXPECT_EQ(records(), 3u);
}

TEST_F(SummaryWriters, TakeRecordsFromAnyThread) {
  SummaryWriter writer = writer_of(7);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&writer, thread] {
      for (int step = 0; step < 50; ++step) writer.add_scalar("of " + std::to_string(thread), step, step);
    });
  for (std::thread& thread : threads) thread.join();
  writer.close();
  EXPECT_EQ(records(), 201u);
}

TEST_F(SummaryWriters, OfSeveralCurvesHaveARunEach) {
  SummaryWriter writer = writer_of(10);
  writer.add_scalars("loss/all", {{"train", 1}, {"a/b", 2}}, 0);
  writer.add_scalars("loss/all", {{"train", 1}}, 1);
  writer.close();
  EXPECT_EQ(records(), 1u);
  EXPECT_THAT(folder_.names(), ElementsAre("events", "loss_all_a_b", "loss_all_train"));
  EXPECT_EQ(records_of(folder_.path() + "/loss_all_train/events").size(), 3u);
  EXPECT_EQ(records_of(folder_.path() + "/loss_all_a_b/events").size(), 2u);
}

TEST_F(SummaryWriters, OfHyperParametersRefuseASecondSetForTheirOwnRun) {
  SummaryWriter writer = writer_of(10);
  writer.add_hparams({{"lr", 0.1}}, {});
  EXPECT_THAT(message_of([&] {
                writer.add_hparams({{"lr", 0.2}}, {});
              }),
              AllOf(HasSubstr("already"), HasSubstr(".run_name")));
  writer.add_hparams({{"lr", 0.2}}, {{"accuracy", 1}}, {.run_name = "other"});
  EXPECT_THAT(message_of([&] {
                writer.add_hparams({{"lr", 0.2}}, {}, {.run_name = "other"});
              }),
              HasSubstr("/other/events already has"));
  writer.close();
  EXPECT_EQ(records(), 4u);
  EXPECT_EQ(records_of(folder_.path() + "/other/events").size(), 5u);
}

// -- ranks

TEST_F(SummaryWriters, OfAJobAreRank0sAlone) {
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](auto group) {
    SummaryWriter writer(folder_.path() + "/run", {.group = group});
    EXPECT_EQ(writer.writes(), group->rank() == 0);
    EXPECT_EQ(writer.file().empty(), group->rank() != 0);
    writer.add_scalar("a", 1, 0);
    writer.close();
  }));
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path()))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(files[0], HasSubstr("/run/events.out.tfevents."));
  EXPECT_EQ(records_of(files[0]).size(), 2u);
}

TEST_F(SummaryWriters, OfEveryRankHaveAFolderEach) {
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](auto group) {
    SummaryWriter writer(folder_.path(), {.group = group, .every_rank = true, .file_name = "events"});
    writer.add_scalar("a", group->rank(), 0);
  }));
  EXPECT_EQ(records_of(folder_.path() + "/rank0/events").size(), 2u);
  EXPECT_EQ(records_of(folder_.path() + "/rank1/events").size(), 2u);
}

TEST(NoSummaryWriter, TakesEverythingAndLooksAtNothing) {
  SummaryWriter writer = SummaryWriter::none();
  EXPECT_FALSE(writer.writes());
  EXPECT_EQ(writer.file(), "");
  writer.add_scalar("", 1, 0);
  writer.add_scalar("a", Tensor(), 0);
  writer.add_scalars("a", {{"b", 1}}, 0);
  EXPECT_EQ(writer.add_histogram("a", Tensor(), 0), 0);
  writer.add_image("a", Tensor(), 0);
  writer.add_images("a", Tensor(), 0);
  writer.add_text("a", "\xff", 0);
  writer.add_hparams({}, {});
  nn::Linear net(2, 3);
  writer.add_graph(net);
  writer.add_graph(net, {1, 2});
  writer.flush();
  writer.close();
}

// -- mistakes

TEST_F(SummaryWriters, NameWhatTheyRefuse) {
  SummaryWriter writer = writer_of(10);
  const auto refusal = [](const auto& call) { return message_of([&] { call(); }); };
  const Tensor square = Tensor::zeros({2, 2});
  EXPECT_THAT(refusal([&] { writer.add_scalar("", 1, 0); }), HasSubstr("add_scalar: the tag is empty"));
  EXPECT_THAT(refusal([&] { writer.add_text("\xff", "", 0); }), HasSubstr("add_text: the tag is not UTF-8"));
  EXPECT_THAT(refusal([&] { writer.add_text("a", "\xc3", 0); }), HasSubstr("add_text: the text is not UTF-8"));
  EXPECT_THAT(refusal([&] { writer.add_scalar("loss", square, 0); }),
              AllOf(HasSubstr("'loss'"), HasSubstr("float32 (2, 2), expected one")));
  EXPECT_THAT(refusal([&] { writer.add_scalar("loss", Tensor(), 0); }), HasSubstr("undefined"));
  EXPECT_THAT(refusal([&] { writer.add_histogram("w", Tensor(), 0); }), HasSubstr("'w': the tensor is undefined"));
  EXPECT_THAT(refusal([&] { writer.add_histogram("w", square, 0, {.buckets = -1}); }), HasSubstr("buckets is -1"));
  EXPECT_THAT(refusal([&] {
                writer.add_image("i", Tensor::zeros({2, 2, 2}), 0);
              }),
              AllOf(HasSubstr("(2, 2, 2)"), HasSubstr("1, 3 or 4")));
  EXPECT_THAT(refusal([&] { writer.add_image("i", Tensor::zeros({0, 2, 3}), 0); }), HasSubstr("(0, 2, 3)"));
  EXPECT_THAT(refusal([&] {
                writer.add_image("i", Tensor::zeros({2, 2}, DType::kInt64), 0);
              }),
              HasSubstr("int64, expected uint8"));
  EXPECT_THAT(refusal([&] { writer.add_images("i", square, 0); }), HasSubstr("expected (N, H, W, C)"));
  EXPECT_THAT(refusal([&] {
                writer.add_images("i", Tensor::zeros({1, 2, 2, 1}), 0, {.columns = 0});
              }),
              HasSubstr("columns is 0"));
  EXPECT_THAT(refusal([&] {
                writer.add_hparams({{"lr", std::numeric_limits<double>::quiet_NaN()}}, {});
              }),
              HasSubstr("'lr' is nan"));
  EXPECT_THAT(refusal([&] { SummaryWriter(""); }), HasSubstr("log_dir is empty"));
  EXPECT_THAT(refusal([&] { SummaryWriter("a", {.max_queue = 0}); }), HasSubstr("max_queue is 0"));
  writer.close();
  EXPECT_EQ(records(), 1u) << "none of that was written";
}

TEST_F(SummaryWriters, SayWhyAFolderCannotBeCreated) {
  const std::string file = folder_.path() + "/taken";
  std::ofstream(file) << "x";
  EXPECT_THAT(message_of([&] { SummaryWriter writer(file); }),
              AllOf(HasSubstr(file), HasSubstr("a file has this name"), HasSubstr("log_dir")));
  EXPECT_THAT(message_of([&] { SummaryWriter writer(file + "/run"); }),
              AllOf(HasSubstr("/taken/run"), HasSubstr("Not a directory")));
  EXPECT_THAT(message_of([&] { SummaryWriter writer("/proc/lockstep"); }),
              AllOf(HasSubstr("/proc/lockstep"), HasSubstr("cannot be created")));
  EXPECT_THAT(message_of([&] { SummaryWriter writer("/proc"); }),
              AllOf(HasSubstr("/proc/events"), HasSubstr("the event file cannot be created")));
  EXPECT_THAT(message_of([&] { SummaryWriter writer(folder_.path(), {.file_name = "taken"}); }),
              HasSubstr("File exists"));
}

TEST_F(SummaryWriters, SayThatTheirFileWasRemoved) {
  const testing::LogLines log;
  {
    SummaryWriter writer = writer_of(10);
    writer.add_scalar("a", 1, 0);
    std::filesystem::remove(folder_.path() + "/events");
    EXPECT_THAT(message_of([&] { writer.flush(); }),
                AllOf(HasSubstr("/events"), HasSubstr("was removed, and 1 buffered records")));
  }
  EXPECT_THAT(log.text(), HasSubstr("was removed, and 1 buffered records")) << "again, in the writer's destructor";
}

// Simulates a full disk that has room again later, in a child process, because the limit applies to a process.
TEST_F(SummaryWriters, KeepRecordsThatCannotBeWrittenAndWriteThemLater) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t room = limit.rlim_cur;
    SummaryWriter writer = writer_of(1);
    writer.add_scalar("a", 1, 0);
    limit.rlim_cur = std::filesystem::file_size(writer.file()) + 5;  // within the next record
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string first = message_of([&] { writer.add_scalar("a", 1, 1); });
    const std::string second = message_of([&] { writer.add_scalar("a", 1, 2); });
    const std::string third = message_of([&] { writer.close(); });
    limit.rlim_cur = room;
    setrlimit(RLIMIT_FSIZE, &limit);
    writer.close();
    const bool told =
        first.find("/events: cannot be written: File too large: make room on the disk") != std::string::npos &&
        first.find("1 records are buffered") != std::string::npos &&
        second.find("2 records are buffered") != std::string::npos &&
        third.find("2 records are buffered") != std::string::npos;
    _exit(told ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(records(), 4u) << "all records, each once";
}

}  // namespace
}  // namespace lockstep::train
