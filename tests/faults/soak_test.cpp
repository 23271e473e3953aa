// Hits a training job at a random moment, again and again: a random rank is killed or stopped. Each time the job must
// end before its deadline, name that rank, and leave nothing but a checkpoint that loads.
//
// LOCKSTEP_SOAK_KILLS: the number of hits (10). LOCKSTEP_SOAK_SEED: the seed of the first; each next one is larger by
// one, and determines everything random. The seed is printed, so that a hit can be repeated: scripts/soak 1 SEED.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "tests/faults/node_job.h"
#include "tests/faults/rank_process.h"
#include "tests/faults/things_left.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 4;
// The guarantee for a death is 2 s; a loaded machine and sanitizers get more. A stopped rank is noticed after 3 s, in
// the rendezvous after 5.
constexpr milliseconds kEndOfDeath(8000), kEndOfStop(20000);

// The parameters of one hit.
struct Hit {
  explicit Hit(std::uint32_t its_seed) : seed(its_seed) {
    std::mt19937 random(seed);
    const std::vector<std::string> wires = {"shm", "tcp"};
    wire = wires[random() % wires.size()];
    nodes = random() % 3 == 0 ? std::vector<int>{2, 2} : std::vector<int>{4};
    if (nodes.size() > 1) wire = random() % 2 == 0 ? "tcp" : "hierarchical";
    signal = random() % 5 == 0 ? SIGSTOP : SIGKILL;
    rank = static_cast<int>(random() % kRanks);
    moment = milliseconds(random() % 1200);
  }
  std::string text() const {
    return fmt::format("seed {}: {} over {}, SIG{} to rank {} after {} ms", seed,
                       nodes.size() == 1 ? "a node" : "two nodes", wire, ::sigabbrev_np(signal), rank, moment.count());
  }

  std::uint32_t seed;
  std::string wire;
  std::vector<int> nodes;  // number of ranks on each
  int signal = 0, rank = 0;
  milliseconds moment{0};
};

class Soak : public ::testing::Test {
 protected:
  Soak() {
    std::string pattern = ::testing::TempDir() + "lockstep-soak-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Soak() override { fs::remove_all(folder_); }

  void strike(const Hit& hit) {
    const std::string checkpoints = folder_ + "/" + std::to_string(hit.seed);
    fs::create_directory(checkpoints);
    ThingsLeft left(checkpoints);
    NodeJob job(hit.nodes, {TRAINING_RANK, "steps=1000000", "pause_ms=1", "save_every=3", "folder=" + checkpoints},
                {{"LOCKSTEP_TRANSPORT", hit.wire},
                 {"LOCKSTEP_TIMEOUT_S", "4"},
                 {"LOCKSTEP_STALL_TIMEOUT_S", "3"},
                 {"LOCKSTEP_STORE_TIMEOUT_S", "5"}});
    const auto begin = Clock::now();
    const pid_t victim = process_of_rank(job.all(), hit.rank);
    ASSERT_GT(victim, 0) << "no such rank; " << job[0].errors();
    std::this_thread::sleep_until(begin + hit.moment);
    for (const Child* node : job.all()) left.note_memory(*node);
    ASSERT_EQ(::kill(victim, hit.signal), 0);
    const auto struck = Clock::now();
    const auto deadline = struck + (hit.signal == SIGSTOP ? kEndOfStop : kEndOfDeath);
    std::string said;
    for (int node = 0; node < job.nodes(); ++node) {
      const auto remaining = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      const int code = job[node].wait(std::max(remaining, milliseconds(1)));
      said += job[node].errors();
      if (hit.signal == SIGKILL)
        check_blame_for_death(hit, victim, code, job[node].errors());
      else
        EXPECT_TRUE(code == 1 || code == kPeerLostExitCode) << code << "\n" << job[node].errors();
    }
    if (hit.signal == SIGSTOP) check_blame_for_silence(hit, victim, said);
    std::printf("%s: ended after %.1f s\n", hit.text().c_str(),
                std::chrono::duration<double>(Clock::now() - struck).count());
    std::fflush(stdout);
    EXPECT_THAT(left.after(job.all(), /*killed_amid_saving=*/true), IsEmpty());
  }

  // Checks the report of every lockrun.
  static void check_blame_for_death(const Hit& hit, pid_t victim, int code, const std::string& errors) {
    EXPECT_EQ(code, 128 + SIGKILL) << errors;
    const std::string blame = fmt::format("lockrun: rank {} \\(pid {}.*\\) was killed by signal 9", hit.rank, victim);
    EXPECT_THAT(find_match(errors, blame), Not(IsEmpty())) << errors;
  }
  // Some rank must be blamed: a lockrun names it, and refers to its output on another node. During the rendezvous there
  // may be no pid yet, and it may be one of several missing ranks.
  static void check_blame_for_silence(const Hit& hit, pid_t victim, const std::string& errors) {
    const std::string blame = fmt::format(
        "rank {0} \\(pid {1}|ranks? [0-9, ]*\\b{0}\\b[0-9, ]* of {2} did not arrive|for ranks? [0-9, ]*\\b{0}\\b",
        hit.rank, victim, kRanks);
    EXPECT_THAT(find_match(errors, blame), Not(IsEmpty())) << errors;
  }

  std::string folder_;
};

TEST_F(Soak, WhoeverIsHitTheJobEndsAndSaysSo) {
  const long kills = env::integer("LOCKSTEP_SOAK_KILLS", 1, 1'000'000).value_or(10);
  const long seed =
      env::integer("LOCKSTEP_SOAK_SEED", 0, 0x7fffffff).value_or(static_cast<long>(std::random_device()() >> 2));
  for (long i = 0; i < kills && !HasFatalFailure(); ++i) {
    const Hit hit(static_cast<std::uint32_t>(seed + i));
    SCOPED_TRACE(hit.text());
    strike(hit);
  }
}

}  // namespace
}  // namespace lockstep::testing
