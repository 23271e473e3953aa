// Flight records: the files that a group writes, and the errors and signals that make it write them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "lockstep/comm/process_group.h"
#include "src/comm/flight/flight_dump.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/sanitized.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-flight-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  std::string text() const { return path_.string(); }

 private:
  fs::path path_;
};

FlightDump read_dump(const fs::path& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return flight_dump_from_json(text, path.string());
}

TEST(FlightRecord, HasTheGroupsCalls) {
  const Folder folder;
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    float value = 1;
    group.all_reduce(&value, 1, DType::kFloat32, ReduceOp::kSum, {.purpose = {"bucket", 5}});
    std::vector<float> many(1000);
    const Work first = group.all_reduce_async(many.data(), many.size(), DType::kFloat32);
    const Work second = group.broadcast_async(many.data(), many.size(), DType::kFloat32, 1);
    group.barrier();
    first.wait();
    second.wait();
    const Buffer memory = group.allocate(4096);
    if (group.rank() == 0) group.send(&value, 1, DType::kFloat32, 1, 4);
    if (group.rank() == 1) group.recv(&value, 1, DType::kFloat32, 0, 4);
    group.dump_flight_record(folder / flight_file_name(group.rank()));
  });
  std::string job;
  for (int rank = 0; rank < 2; ++rank) {
    const FlightDump dump = read_dump(folder / flight_file_name(rank));
    EXPECT_EQ(dump.rank, rank);
    EXPECT_EQ(dump.world_size, 2);
    EXPECT_EQ(dump.pid, getpid());
    EXPECT_EQ(dump.reason, "request");
    EXPECT_FALSE(dump.boot_id.empty());
    if (rank == 1) {
      EXPECT_EQ(dump.job, job);
    }
    job = dump.job;
    EXPECT_EQ(job.size(), 16u);
    ASSERT_EQ(dump.groups.size(), 1u);
    const FlightGroup& group = dump.groups[0];
    EXPECT_EQ(group.backend + " " + group.transport, "host shm");
    ASSERT_EQ(group.operations.size(), 4u);
    EXPECT_EQ(describe(group.operations[0]), "all_reduce #1 (bucket 5, float32 x 1, sum)");
    EXPECT_EQ(describe(group.operations[2]), "broadcast #3 (float32 x 1000, root 1)");
    EXPECT_EQ(describe(group.operations[3]), "barrier #4");
    for (const FlightEntry& entry : group.operations) {
      EXPECT_EQ(entry.state, FlightState::kFinished) << describe(entry);
      EXPECT_LE(entry.issued_ns, entry.started_ns);
      EXPECT_LE(entry.started_ns, entry.ended_ns);
    }
    ASSERT_EQ(group.messages.size(), 2u);
    EXPECT_EQ(describe(group.messages[0]), "allocate #1 (4096 bytes)");
    EXPECT_EQ(describe(group.messages[1]),
              rank == 0 ? "send #2 to rank 1 (tag 4, float32 x 1)" : "recv #2 from rank 0 (tag 4, float32 x 1)");
    EXPECT_EQ(group.messages[1].state, FlightState::kFinished);
  }
}

// Before a follower (Work::then) begins, its reserved place is in the record; afterwards the call that it made.
TEST(FlightRecord, HasFollowers) {
  const Folder folder;
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  run_ranks(2, "shm", [&](ProcessGroup& group) {
    float value = 1;
    const Work held = group.barrier_async().then([&](Stream&) {
      opened.wait();
      return group.all_reduce_async(&value, 1, DType::kFloat32, ReduceOp::kSum, {.purpose = {"factors", 3}});
    });
    const Work last = group.barrier_async();
    const auto recorded = [&] {
      const fs::path path = folder / "requested.json";
      group.dump_flight_record(path.string());
      const FlightDump dump = read_dump(path);
      std::string text;
      for (const FlightEntry& entry : dump.groups.at(0).operations) text += describe(entry) + "; ";
      return text;
    };
    if (group.rank() == 0) {
      EXPECT_EQ(recorded(), "barrier #1; follower #2; barrier #3; ");
      gate.set_value();
      last.wait();
      EXPECT_EQ(recorded(), "barrier #1; all_reduce #2 (factors 3, float32 x 1, sum); barrier #3; ");
    }
    last.wait();
    held.wait();
    EXPECT_EQ(value, 2);
    group.barrier();
  });
}

TEST(FlightRecord, NamesTheJobsRanksInAPartOfTheJob) {
  const Folder folder;
  run_ranks(3, "shm", [&](ProcessGroup& group) {
    const auto part = group.split(group.rank() == 1 ? 1 : 0, -group.rank());
    part->barrier();
    group.dump_flight_record(folder / flight_file_name(group.rank()));
    group.barrier();
  });
  const FlightDump dump = read_dump(folder / "rank2.json");
  EXPECT_EQ(dump.rank, 2);
  EXPECT_EQ(dump.world_size, 3);
  ASSERT_EQ(dump.groups.size(), 2u);
  EXPECT_EQ(dump.groups[1].name, "group/split1.0");
  EXPECT_EQ(dump.groups[1].members, (std::vector<int>{2, 0}));
  EXPECT_EQ(dump.groups[1].rank, 0);
}

TEST(FlightRecord, WithoutAPlaceToGoIsRefused) {
  run_ranks(1, "shm", [](ProcessGroup& group) {
    EXPECT_NE(message_of([&] { group.dump_flight_record(); }).find("LOCKSTEP_FLIGHT_DIR"), std::string::npos);
    EXPECT_NE(message_of([&] { group.dump_flight_record("/proc/none/rank0.json"); }).find("/proc/none"),
              std::string::npos);
  });
}

// Runs the body in a child process, since it changes the environment and sends signals. The exit status tells what
// failed.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
  return condition();
}

// A rank that stays in its own code also leaves a record, and is not disturbed.
TEST(FlightRecord, IsWrittenByARankThatIsElsewhere) {
  for (const char* transport : {"shm", "tcp"}) {
    const Folder folder;
    const int status = in_child([&] {
      setenv("LOCKSTEP_FLIGHT_DIR", folder.text().c_str(), 1);
      run_ranks(2, transport, [&](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 1) {
          if (!comes_true([&] { return fs::exists(folder / "rank1.json"); })) _exit(5);
          return;
        }
        try {
          group.barrier({.purpose = {"step"}, .timeout = 100ms});
        } catch (const TimeoutError&) {
          return;
        }
        _exit(6);
      });
      return 0;
    });
    ASSERT_EQ(status, 0) << transport;
    const FlightDump absent = read_dump(folder / "rank1.json");
    EXPECT_NE(absent.groups.at(0).failure.value().text.find("did not arrive"), std::string::npos);
    ASSERT_EQ(absent.groups[0].operations.size(), 1u);
    EXPECT_EQ(absent.groups[0].operations[0].state, FlightState::kFinished);
    EXPECT_EQ(describe(read_dump(folder / "rank0.json").groups.at(0).operations.at(1)), "barrier #2 (step)");
  }
}

TEST(FlightRecord, IsWrittenBeforeTheErrorIsThrown) {
  const Folder folder;
  const int status = in_child([&] {
    setenv("LOCKSTEP_FLIGHT_DIR", folder.text().c_str(), 1);
    run_ranks(2, "tcp", [&](ProcessGroup& group) {
      group.barrier();
      try {
        float value = 1;
        if (group.rank() == 0) group.all_reduce(&value, 1, DType::kFloat32);
        if (group.rank() == 1) group.barrier_async().wait();
      } catch (const MismatchError&) {
        if (!fs::exists(folder / flight_file_name(group.rank()))) _exit(3);
        return;
      }
      _exit(4);
    });
    return 0;
  });
  ASSERT_EQ(status, 0);
  for (int rank = 0; rank < 2; ++rank) {
    const FlightDump dump = read_dump(folder / flight_file_name(rank));
    EXPECT_EQ(dump.reason, "error");
    EXPECT_NE(dump.groups.at(0).failure.value().text.find("the ranks make different calls"), std::string::npos);
    EXPECT_NE(dump.groups[0].operations.at(1).state, FlightState::kFinished);
  }
}

TEST(FlightRecord, IsWrittenOnSigusr1WhileTheRankWorks) {
  const Folder folder;
  EXPECT_EQ(in_child([&] {
              setenv("LOCKSTEP_FLIGHT_DIR", folder.text().c_str(), 1);
              run_ranks(1, "shm", [&](ProcessGroup& group) {
                group.barrier();
                kill(getpid(), SIGUSR1);
                if (!comes_true([&] { return fs::exists(folder / "rank0.json"); })) _exit(3);
              });
              struct sigaction after {};
              sigaction(SIGUSR1, nullptr, &after);
              return after.sa_handler == SIG_DFL ? 0 : 4;  // without a group the signal has no handler
            }),
            0);
  EXPECT_EQ(read_dump(folder / "rank0.json").reason, "SIGUSR1");
}

// lockrun ends the other ranks in this way: their records must not be lost, and the process must end as without a
// handler.
TEST(FlightRecord, IsWrittenBeforeSigtermEndsTheProcess) {
  const Folder folder;
  const int status = in_child([&] {
    setenv("LOCKSTEP_FLIGHT_DIR", folder.text().c_str(), 1);
    run_ranks(1, "shm", [&](ProcessGroup& group) {
      group.barrier();
      kill(getpid(), SIGTERM);
      std::this_thread::sleep_for(20s);
    });
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_EQ(read_dump(folder / "rank0.json").reason, "SIGTERM");
}

// A forked child has the handler but not the thread; SIGTERM must still end it. SIGUSR1, which lockrun sends to every
// process with a handler, must not.
TEST(FlightRecord, AForkedChildEndsBySigterm) {
  if (testing::kThreadSanitized)
    GTEST_SKIP() << "TSan runs no signal handler in a child that a process with threads forked";
  const Folder folder;
  const int status = in_child([&] {
    setenv("LOCKSTEP_FLIGHT_DIR", folder.text().c_str(), 1);
    int exit_code = 3;
    run_ranks(1, "shm", [&](ProcessGroup& group) {
      group.barrier();
      const pid_t child = fork();
      if (child == 0) {
        kill(getpid(), SIGUSR1);
        kill(getpid(), SIGTERM);
        std::this_thread::sleep_for(5s);
        _exit(4);
      }
      int ended = 0;
      waitpid(child, &ended, 0);
      exit_code = WIFSIGNALED(ended) && WTERMSIG(ended) == SIGTERM ? 0 : 5;
    });
    return exit_code;
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(fs::exists(folder / "rank0.json")) << "the signal was not for the parent";
}

std::atomic<int> own_handlers_calls{0};

TEST(FlightRecord, AProgramsOwnHandlerStays) {
  EXPECT_EQ(in_child([] {
              std::signal(SIGUSR1, [](int) { ++own_handlers_calls; });
              run_ranks(1, "shm", [](ProcessGroup&) { kill(getpid(), SIGUSR1); });
              kill(getpid(), SIGUSR1);
              return own_handlers_calls == 2 ? 0 : 3;
            }),
            0);
}

TEST(FlightRecord, LockstepFlightSignal0LeavesTheSignalAlone) {
  const int status = in_child([] {
    setenv("LOCKSTEP_FLIGHT_SIGNAL", "0", 1);
    run_ranks(1, "shm", [](ProcessGroup&) { raise(SIGUSR1); });
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
}

}  // namespace
}  // namespace lockstep
