// How ranks find each other and the store, for every way of starting; ranks are threads, or processes of this program.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <map>
#include <thread>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Kind = JobEnvironment::Kind;
constexpr auto kTime = 20s;

// Free a moment ago; no other test here binds explicit ports.
std::uint16_t free_port() { return local_endpoint(listen_tcp("127.0.0.1", 0).get()).port; }

// A listener whose port is followed by a free one, both below Linux's ephemeral ports, so that no other program takes
// it.
Fd listen_before_a_free_port() {
  for (int i = 0; i < 100; ++i) {
    const int port = 20'000 + (getpid() % 5'000) * 2 + 20 * i % 2'000;
    try {
      Fd listener = listen_tcp("127.0.0.1", static_cast<std::uint16_t>(port));
      listen_tcp("127.0.0.1", static_cast<std::uint16_t>(port + 1));
      return listener;
    } catch (const Error&) {  // taken: try the next one
    }
  }
  throw Error("no two neighbouring ports are free");
}

JobEnvironment address_job(int rank, int world_size, std::uint16_t port, std::string token = "secret") {
  JobEnvironment job;
  job.kind = Kind::kAddress;
  job.place = {rank, world_size, rank, world_size};
  job.master_host = "127.0.0.1";
  job.master_port = port;
  job.token = std::move(token);
  return job;
}

JobEnvironment mpi_job(int rank, int world_size, const std::string& id) {
  JobEnvironment job;
  job.kind = Kind::kOneMachine;
  job.place = {rank, world_size, rank, world_size};
  job.job_id = id + std::to_string(getpid());
  return job;
}

void expect_same_store(Rendezvous& a, Rendezvous& b) {
  a.store->set("from a", "to b");
  EXPECT_EQ(b.store->get("from a", kTime), "to b");
}

TEST(Meet, AloneNeedsNoSocket) {
  const Rendezvous alone = rendezvous({}, kTime);
  EXPECT_EQ(alone.server, nullptr);
  alone.store->set("key", "value");
  EXPECT_EQ(alone.store->get("key", 0ms), "value");
}

TEST(Meet, RankZeroServesTheStoreAtTheAddressAndMayComeLast) {
  const auto port = free_port();
  auto other = std::async(std::launch::async, [&] { return rendezvous(address_job(1, 2, port), kTime); });
  std::this_thread::sleep_for(50ms);
  Rendezvous zero = rendezvous(address_job(0, 2, port), kTime);
  Rendezvous one = other.get();
  EXPECT_NE(zero.server, nullptr);
  EXPECT_EQ(one.server, nullptr);
  EXPECT_EQ(one.advertise_address, "127.0.0.1");
  expect_same_store(one, zero);
}

TEST(Meet, AStoreThatIsHostedIsNotHostedAgain) {
  const StoreServer server({.token = "secret"});
  std::vector<Rendezvous> ranks;
  for (const int rank : {0, 1}) {
    JobEnvironment job = address_job(rank, 2, server.endpoint().port);
    job.store_is_hosted = true;
    ranks.push_back(rendezvous(job, kTime));
    EXPECT_EQ(ranks.back().server, nullptr);
  }
  expect_same_store(ranks[0], ranks[1]);
}

TEST(Meet, FailuresNameTheRankAndTheAddress) {
  const auto port = free_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const std::string nobody = message_of([&] { rendezvous(address_job(1, 2, port), 100ms); });
  EXPECT_NE(nobody.find("rank 1 of 2: store at " + address + ": no answer"), std::string::npos) << nobody;

  const Rendezvous zero = rendezvous(address_job(0, 2, port), kTime);
  const std::string taken = message_of([&] { rendezvous(address_job(0, 2, port), kTime); });
  EXPECT_NE(taken.find("rank 0 of 2: cannot listen on " + address), std::string::npos) << taken;
  EXPECT_NE(taken.find("second rank 0"), std::string::npos) << taken;
  const std::string unauthenticated = message_of([&] { rendezvous(address_job(1, 2, port, "another"), kTime); });
  EXPECT_NE(unauthenticated.find("token was refused"), std::string::npos) << unauthenticated;

  JobEnvironment network = address_job(1, 2, port, "");
  network.master_host = "0.0.0.0";
  const std::string open = message_of([&] { rendezvous(network, kTime); });
  EXPECT_NE(open.find("rank 1 of 2: MASTER_ADDR=0.0.0.0"), std::string::npos) << open;
  EXPECT_NE(open.find("LOCKSTEP_INSECURE=1"), std::string::npos) << open;
}

// Under srun, users do not set MASTER_ADDR.
TEST(Meet, FailuresSayWhereTheAddressComesFrom) {
  JobEnvironment job = address_job(1, 2, free_port());
  job.host_source = "the first host of SLURM_JOB_NODELIST";
  job.port_source = "made of SLURM_JOB_ID and SLURM_STEP_ID";
  const std::string nobody = message_of([&] { rendezvous(job, 100ms); });
  const std::string expected = "the address is 127.0.0.1 (the first host of SLURM_JOB_NODELIST), port " +
                               std::to_string(job.master_port) + " (made of SLURM_JOB_ID and SLURM_STEP_ID)";
  EXPECT_NE(nobody.find(expected), std::string::npos) << nobody;
  const Rendezvous zero = rendezvous(address_job(0, 2, job.master_port), kTime);
  job.place.rank = job.place.local_rank = 0;
  EXPECT_NE(message_of([&] { rendezvous(job, kTime); }).find(expected), std::string::npos);
  job.token = "";
  job.master_host = "10.0.0.1";
  const std::string open = message_of([&] { rendezvous(job, kTime); });
  for (const std::string& text : {nobody, open}) EXPECT_EQ(text.find("MASTER_"), std::string::npos) << text;
  EXPECT_NE(open.find("10.0.0.1 (the first host of SLURM_JOB_NODELIST) is not loopback"), std::string::npos) << open;
}

// This test plays torchrun's agent.
TEST(Meet, ThePortThatTorchrunsAgentHoldsIsLeftToIt) {
  const Fd agent = listen_before_a_free_port();
  const std::string port = std::to_string(local_endpoint(agent.get()).port);
  const auto rank = [&](int number) {
    const std::map<std::string, std::string> variables = {{"RANK", std::to_string(number)},
                                                          {"LOCAL_RANK", std::to_string(number)},
                                                          {"WORLD_SIZE", "2"},
                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                          {"MASTER_PORT", port},
                                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
    return read_job_environment([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  auto other = std::async(std::launch::async, [&] { return rendezvous(rank(1), kTime); });
  Rendezvous zero = rendezvous(rank(0), kTime), one = other.get();
  expect_same_store(one, zero);
  const std::string taken = message_of([&] { rendezvous(rank(0), kTime); });
  EXPECT_NE(taken.find("cannot listen on 127.0.0.1:" + std::to_string(zero.server->endpoint().port)), std::string::npos)
      << taken;
  EXPECT_NE(taken.find("MASTER_PORT=" + port), std::string::npos) << taken;
}

TEST(Meet, MpirunsRanksMeetAndTwoJobsDoNot) {
  std::vector<std::future<Rendezvous>> coming;
  for (const char* job : {"first", "second"})
    for (const int rank : {1, 0})
      coming.push_back(std::async(std::launch::async, [=] { return rendezvous(mpi_job(rank, 2, job), kTime); }));
  std::vector<Rendezvous> ranks;
  for (auto& rank : coming) ranks.push_back(rank.get());
  expect_same_store(ranks[0], ranks[1]);
  expect_same_store(ranks[2], ranks[3]);
  EXPECT_EQ(ranks[0].token, ranks[1].token);
  EXPECT_GE(ranks[0].token.size(), 32u);
  EXPECT_NE(ranks[0].token, ranks[2].token);
  ranks[0].store->set("job", "first");
  EXPECT_THROW(ranks[2].store->get("job", 0ms), TimeoutError);
  const std::string lonely = message_of([] { rendezvous(mpi_job(1, 2, "nobody"), 50ms); });
  EXPECT_NE(lonely.find("rank 1 of 2: rank 0 of this job"), std::string::npos) << lonely;
}

TEST(Meet, RankZeroMayLeaveWithItsServerFirst) {
  const auto port = free_port();
  std::promise<void> zero_left;
  const auto join = [&](int rank) {
    Rendezvous met = rendezvous(address_job(rank, 2, port), kTime);
    auto group =
        ProcessGroup::create({rank, 2, rank, 2}, met.store, met.token, {.transport = "tcp"}, met.advertise_address);
    float one = 1;
    group->all_reduce(std::span(&one, 1));
    EXPECT_EQ(one, 2);
    if (rank == 1) zero_left.get_future().wait();
    group.reset();
    met = {};
    if (rank == 0) zero_left.set_value();
  };
  std::thread other(join, 1);
  join(0);
  other.join();
}

// -- real processes of this program ----------------------------------------------------------------------------------

// Set for the processes that SpawnedRank starts: they run the same test, but as one of its ranks.
constexpr const char* kIsSpawned = "LOCKSTEP_TEST_IS_SPAWNED";

// The work of such a rank. Rank 0 ends each group late, so that the other rank makes the next group while rank 0 still
// has the former.
void make_three_groups_one_after_the_other() {
  for (int round = 0; round < 3; ++round) {
    const auto group = init_process_group({.timeout = kTime, .store_timeout = kTime});
    EXPECT_EQ(default_process_group(), group);
    ASSERT_EQ(group->world_size(), 2);
    std::int64_t sum = group->rank() + 10 * round;
    group->all_reduce(std::span(&sum, 1));
    ASSERT_EQ(sum, 1 + 20 * round);
    if (group->rank() == 0) std::this_thread::sleep_for(50ms);
  }
  EXPECT_EQ(default_process_group(), nullptr);
}

// Starts this program as one rank; the destructor waits for it.
class SpawnedRank {
 public:
  explicit SpawnedRank(const std::map<std::string, std::string>& variables, bool has_streams = true) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    environment.push_back(std::string(kIsSpawned) + "=1");
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string program = "/proc/self/exe",
                filter = fmt::format("--gtest_filter={}.{}", test->test_suite_name(), test->name()),
                quiet = "--gtest_brief=1";
    char* arguments[] = {program.data(), filter.data(), quiet.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int stream = 0; stream < 3 && !has_streams; ++stream) posix_spawn_file_actions_addclose(&actions, stream);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, pointers.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~SpawnedRank() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }
  // Returns the exit code, or -1.
  int wait() {
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + 3 * kTime;
    while (std::chrono::steady_clock::now() < deadline) {
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(2ms);
    }
    return -1;
  }

 private:
  pid_t pid_ = 0;
};

using Variables = std::map<std::string, std::string>;

void run_two_ranks(const std::function<Variables(const std::string& rank)>& variables) {
  if (std::getenv(kIsSpawned) != nullptr) return make_three_groups_one_after_the_other();
  SpawnedRank zero(variables("0")), one(variables("1"));
  EXPECT_EQ(zero.wait(), 0);
  EXPECT_EQ(one.wait(), 0);
}

TEST(GroupsInARow, WithRankZeroAsTheHost) {
  const std::string port = std::to_string(free_port());
  run_two_ranks([&](const std::string& rank) {
    return Variables{{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  });
}

// The program's output must not reach a peer.
TEST(GroupsInARow, NoSocketTakesTheNumberOfAStandardStream) {
  const auto expect_no_sockets = [] {
    for (const int stream : {0, 1, 2}) {
      struct stat status {};
      EXPECT_EQ(fstat(stream, &status), 0) << stream;
      EXPECT_FALSE(S_ISSOCK(status.st_mode)) << stream;
    }
  };
  if (std::getenv(kIsSpawned) != nullptr) {
    const auto group = init_process_group({.timeout = kTime, .store_timeout = kTime});
    expect_no_sockets();
    std::printf("this goes nowhere\n");
    std::fflush(stdout);
    return group->barrier();
  }
  const std::string port = std::to_string(free_port());
  const auto variables = [&](const char* rank) {
    return Variables{{"RANK", rank},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", port},
                     {"LOCKSTEP_TRANSPORT", "tcp"}};
  };
  SpawnedRank zero(variables("0"), false), one(variables("1"), false);
  EXPECT_EQ(zero.wait(), 0);
  EXPECT_EQ(one.wait(), 0);
}

TEST(GroupsInARow, UnderMpirun) {
  const std::string name = "test-" + std::to_string(getpid());
  run_two_ranks([&](const std::string& rank) {
    return Variables{{"OMPI_COMM_WORLD_RANK", rank},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", name}};
  });
}

}  // namespace
}  // namespace lockstep
