// Trainings that end early on request in the middle of an epoch, and continue: every loss, the weights, their averages
// and a Trainer's history have the bits of an undisturbed run.
#include <gmock/gmock.h>

#include <csignal>
#include <set>
#include <sstream>

#include "lockstep/core/error.h"
#include "tests/faults/rank_process.h"
#include "tests/faults/restart_job.h"

namespace lockstep::testing {
namespace {

// The loop of resume_rank, and which process gets the signal: a rank, or lockrun (-1).
struct Interruption {
  const char* loop;
  int receiver;
  int signal;
};
void PrintTo(const Interruption& how, std::ostream* out) {
  *out << how.loop << ", signal " << how.signal << " to " << how.receiver;
}

class Resume : public Restart, public ::testing::WithParamInterface<Interruption> {
 protected:
  Words resume(const std::string& name, const Words& arguments) const {
    Words words = {LOCKRUN, "--no-fold", "--no-prefix"};
    const Words ranks =
        std::string(GetParam().loop) == "servers" ? Words{"--ps", "1", "--workers", "2"} : Words{"-n", "2"};
    words.insert(words.end(), ranks.begin(), ranks.end());
    words.insert(words.end(), {RESUME_RANK, std::string("loop=") + GetParam().loop, "folder=" + folder() + "/" + name,
                               "losses=" + folder() + "/" + name + ".losses", "epochs=40"});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  std::string losses(const std::string& name) const {
    std::ifstream file(folder() + "/" + name + ".losses");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::int64_t steps(const std::string& name) const {
    const std::string lines = losses(name);
    return std::count(lines.begin(), lines.end(), '\n');
  }
};

// Ranks print in any order.
std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

TEST_P(Resume, ContinuesInMidEpochWithTheBitsOfAnUndisturbedRun) {
  Child undisturbed(resume("undisturbed", {}));
  ASSERT_EQ(undisturbed.wait(kLong), 0) << undisturbed.errors();
  for (int interruption = 0; interruption < 3; ++interruption) {
    const std::int64_t steps_before = steps("again");
    Child job(resume("again", {"preempt=1", "pause_ms=50"}));
    ASSERT_TRUE(poll_until([&] { return steps("again") >= steps_before + 2; }, kLong)) << job.errors();
    if (GetParam().receiver < 0) {
      job.signal(GetParam().signal);
    } else {
      const pid_t receiver = process_of_rank(job, GetParam().receiver);
      ASSERT_GT(receiver, 0);
      ASSERT_EQ(::kill(receiver, GetParam().signal), 0);
    }
    ASSERT_EQ(job.wait(kLong), kPreemptedExitCode) << job.errors();
    EXPECT_TRUE(job.nothing_left());
  }
  Child last(resume("again", {"preempt=1"}));
  EXPECT_EQ(last.wait(kLong), 0) << last.errors();
  EXPECT_EQ(losses("again"), losses("undisturbed")) << "each step was made once";
  EXPECT_EQ(lines_of(last.output()), lines_of(undisturbed.output()));
}
// With --ps 1 --workers 2, each of the three ranks gets the signal once.
INSTANTIATE_TEST_SUITE_P(Loops, Resume,
                         ::testing::Values(Interruption{"own", -1, SIGTERM}, Interruption{"trainer", -1, SIGTERM},
                                           Interruption{"trainer", 1, SIGUSR2}, Interruption{"servers", -1, SIGTERM},
                                           Interruption{"servers", 0, SIGTERM}, Interruption{"servers", 1, SIGUSR2},
                                           Interruption{"servers", 2, SIGTERM}));

}  // namespace
}  // namespace lockstep::testing
