// Ranks as srun or Kubernetes start them. Neither is needed: the tests set the variables that these set.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/faults/hand_job.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kOtherLaunchersTime(30'000);

class File {
 public:
  File(const std::string& name, const std::string& text) : path_(temporary(name)) { std::ofstream(path_) << text; }
  ~File() { std::filesystem::remove(path_); }
  void append(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string quoted(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "'" : " '") + word + "'";
  return text;
}

// A replacement for srun: `srun "2,1" PROGRAM...` starts that many tasks on each of its nodes, which are all this
// machine.
constexpr const char* kSrun = R"(
counts=$1; shift
export SLURM_JOB_ID=$JOB SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=$counts SLURM_JOB_NODELIST=$HOSTS
total=0; for count in $(echo $counts | tr , ' '); do total=$((total + count)); done
export SLURM_NTASKS=$total
procid=0 node=0 tasks=
for count in $(echo $counts | tr , ' '); do
  local=0
  while [ $local -lt $count ]; do
    SLURM_PROCID=$procid SLURM_LOCALID=$local SLURM_NODEID=$node "$@" & tasks="$tasks $!"
    procid=$((procid + 1)) local=$((local + 1))
  done
  node=$((node + 1))
done
code=0; for task in $tasks; do wait $task || code=$?; done; exit $code
)";

Child srun(const std::string& counts, const std::vector<std::string>& program, Environment environment) {
  environment.insert({{"JOB", std::to_string(::getpid() % 1000)}, {"HOSTS", "127.0.0.[1-2]"}});
  std::vector<std::string> command = {"sh", "-c", kSrun, "srun", counts};
  command.insert(command.end(), program.begin(), program.end());
  return Child(command, {.environment = std::move(environment)});
}

TEST(Srun, TasksOfOneMachineNeedNeitherAddressNorToken) {
  Child job = srun("3", collective_rank({"steps=10"}), {{"HOSTS", "no-such-host.invalid"}});
  EXPECT_EQ(job.wait(kOtherLaunchersTime), 0) << job.errors();
  for (const char* line : {"rank 0 of 3 did 10 steps", "rank 1 of 3 did 10 steps", "rank 2 of 3 did 10 steps"})
    EXPECT_THAT(job.output(), HasSubstr(line));
}

TEST(Srun, TasksOfSeveralMachinesMeetAtTheFirst) {
  Child job = srun("2,1", collective_rank({"steps=10"}), {{"LOCKSTEP_TOKEN", "a shared secret"}});
  EXPECT_EQ(job.wait(kOtherLaunchersTime), 0) << job.errors();
  for (const char* line : {"rank 0 of 3 did 10 steps", "rank 1 of 3 did 10 steps", "rank 2 of 3 did 10 steps"})
    EXPECT_THAT(job.output(), HasSubstr(line));
}

TEST(Srun, AcrossMachinesThereMustBeAToken) {
  Child job = srun("1,1", collective_rank({"steps=10"}), {{"HOSTS", "10.255.255.[1-2]"}});
  EXPECT_EQ(job.wait(kOtherLaunchersTime), 1);
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("10.255.255.1 (the first host of SLURM_JOB_NODELIST) is not loopback"),
                                  HasSubstr("openssl rand -hex 32"), HasSubstr("LOCKSTEP_INSECURE=1")));
}

TEST(Srun, AListThatCannotBeReadIsNamed) {
  Child job = srun("1,1", collective_rank({"steps=10"}), {{"HOSTS", "node[1"}});
  EXPECT_EQ(job.wait(kOtherLaunchersTime), 2);
  EXPECT_THAT(job.errors(), HasSubstr("SLURM_JOB_NODELIST='node[1'"));
}

// -- Kubernetes' training operators: no LOCAL_RANK, and a service's name in place of an address

class Pods : public ::testing::Test {
 protected:
  Environment of(int rank, const std::string& host) const {
    return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},           {"MASTER_ADDR", host},
            {"MASTER_PORT", port_},         {"LOCKSTEP_TOKEN", "mounted"}, {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  }
  // Runs the program with its own hosts file, as in a pod.
  static std::vector<std::string> with_hosts(const File& hosts, const std::vector<std::string>& command) {
    return {"unshare", "-m", "sh", "-c", "mount --bind " + hosts.path() + " /etc/hosts && exec " + quoted(command)};
  }
  std::string port_ = free_port();
};

TEST_F(Pods, RankZeroThatIsToldLocalhostServesTheOthersAllTheSame) {
  Child zero(collective_rank({"steps=10"}), {.environment = of(0, "localhost")});
  Child one(collective_rank({"steps=10"}), {.environment = of(1, "127.0.0.2")});
  EXPECT_EQ(zero.wait(kOtherLaunchersTime), 0) << zero.errors();
  EXPECT_EQ(one.wait(kOtherLaunchersTime), 0) << one.errors();
}

// The machine can listen on all IPv6 interfaces, which also accept IPv4, but has no ::1.
TEST_F(Pods, RankZeroWithoutIpv6FindsItsOwnStore) {
  const char* setup =
      "ip link set lo up && echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 && echo 1 > "
      "/proc/sys/net/ipv6/conf/lo/disable_ipv6";
  if (std::system(fmt::format("unshare --net sh -c '{}' > /dev/null 2>&1", setup).c_str()) != 0)
    GTEST_SKIP() << "no network namespace may be made here, or none whose IPv6 can be turned off";
  const std::string program = quoted(collective_rank({"steps=10"}));
  const std::string both =
      fmt::format("{} && {{ RANK=0 MASTER_ADDR=localhost {} & zero=$!; RANK=1 MASTER_ADDR=127.0.0.1 {}; wait $zero; }}",
                  setup, program, program);
  Child pods({"unshare", "--net", "sh", "-c", both}, {.environment = of(0, "")});
  EXPECT_EQ(pods.wait(kOtherLaunchersTime), 0) << pods.errors();
  EXPECT_THAT(pods.output(), AllOf(HasSubstr("rank 0 of 2 did 10 steps"), HasSubstr("rank 1 of 2 did 10 steps")));
}

TEST_F(Pods, WithoutATokenNobodyIsServed) {
  Environment environment = of(0, "localhost");
  environment.erase("LOCKSTEP_TOKEN");
  Child zero(collective_rank({"steps=10"}), {.environment = environment});
  EXPECT_EQ(zero.wait(kOtherLaunchersTime), 1);
  EXPECT_THAT(zero.errors(), AllOf(HasSubstr("without a token"), HasSubstr("LOCKSTEP_TOKEN_FILE")));
}

TEST_F(Pods, ANameThatComesToExistLateIsWaitedFor) {
  if (std::system("unshare -m sh -c 'mount --bind /etc/hosts /etc/hosts' > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "no mount namespace may be made here";
  const File zeros("zeros-hosts", "127.0.0.1 localhost\n"), ones("ones-hosts", "127.0.0.1 localhost\n");
  Child zero(with_hosts(zeros, collective_rank({"steps=10"})), {.environment = of(0, "job-master-0.invalid")});
  Child one(with_hosts(ones, collective_rank({"steps=10"})), {.environment = of(1, "job-master-0.invalid")});
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_FALSE(one.alive().empty()) << one.errors();
  ones.append("127.0.0.1 job-master-0.invalid\n");
  EXPECT_EQ(one.wait(kOtherLaunchersTime), 0) << one.errors();
  EXPECT_EQ(zero.wait(kOtherLaunchersTime), 0) << zero.errors();
}

TEST_F(Pods, ANameThatNeverComesIsNamed) {
  Environment environment = of(1, "job-master-0.invalid");
  environment["LOCKSTEP_STORE_TIMEOUT_S"] = "2";
  Child one(collective_rank({"steps=10"}), {.environment = environment});
  EXPECT_EQ(one.wait(kOtherLaunchersTime), 1);
  EXPECT_THAT(one.errors(),
              AllOf(HasSubstr("rank 1 of 2: store at job-master-0.invalid:" + port_ + ": no answer within 2 s ("),
                    ::testing::AnyOf(HasSubstr("known"), HasSubstr("failure in name resolution"))));
}

TEST(Loopback, ThatIsDownIsNamedAtOnce) {
  if (std::system("unshare --net true > /dev/null 2>&1") != 0) GTEST_SKIP() << "no network namespace may be made here";
  std::vector<std::string> command = {"unshare", "--net", LOCKRUN, "--no-fold", "-n", "2"};
  for (const std::string& word : collective_rank({"steps=3"})) command.push_back(word);
  Child job(command, {.environment = {{"LOCKSTEP_STORE_TIMEOUT_S", "60"}}});
  EXPECT_EQ(job.wait(kOtherLaunchersTime), 1);
  EXPECT_THAT(job.errors(), HasSubstr("is its loopback interface down?"));
}

TEST(TokenFile, ThatEverybodyCanReadIsWarnedOf) {
  const File token("token", "secret\n");
  for (const bool is_open : {true, false}) {
    std::filesystem::permissions(token.path(), std::filesystem::perms(is_open ? 0644 : 0600));
    HandJob job(2, {{"LOCKSTEP_TOKEN_FILE", token.path()}});
    job.start_all({"steps=3"});
    for (const int rank : {0, 1}) EXPECT_EQ(job[rank].wait(kOtherLaunchersTime), 0) << job[rank].errors();
    EXPECT_EQ(job[0].errors().find("can be read by every user") != std::string::npos, is_open) << job[0].errors();
    EXPECT_EQ(job[1].errors(), "") << "said once";
  }
}

}  // namespace
}  // namespace lockstep::testing
