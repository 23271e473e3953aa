// The rank and world of a process, for every way of starting it, and for every invalid environment.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <map>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;
using Kind = JobEnvironment::Kind;

JobEnvironment read(const Variables& variables) {
  return read_job_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    read(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(JobEnvironment, NothingSetIsRankZeroOfOne) {
  const JobEnvironment job = read({});
  EXPECT_EQ(job.kind, Kind::kAlone);
  EXPECT_EQ(job.place, (Place{0, 1, 0, 1}));
}

TEST(JobEnvironment, TorchrunsVariables) {
  const JobEnvironment job = read(kTorchrun);
  EXPECT_EQ(job.kind, Kind::kAddress);
  EXPECT_EQ(job.place, (Place{3, 4, 1, 2}));
  EXPECT_EQ(job.master_host, "10.0.0.1");
  EXPECT_EQ(job.master_port, 29500);
  EXPECT_FALSE(job.store_is_hosted);
  EXPECT_TRUE(read(with(kTorchrun, "LOCKSTEP_STORE_HOSTED", "1")).store_is_hosted);
  EXPECT_EQ(job.host_source, "MASTER_ADDR");
  EXPECT_EQ(read(with(kTorchrun, "LOCKSTEP_STORE_HOSTED", "1")).host_source, "its launcher's choice")
      << "the user has set none";
}

TEST(JobEnvironment, TorchrunsAgentHoldsThePort) {
  const Variables under_agent = with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(read(under_agent).master_port, 29501);
  EXPECT_NE(read(under_agent).port_source.find("MASTER_PORT=29500"), std::string::npos);
  EXPECT_EQ(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).master_port, 29500);
  EXPECT_EQ(read(with(under_agent, "LOCKSTEP_STORE_HOSTED", "1")).master_port, 29500)
      << "lockrun inside of a rank of torchrun";
  const Variables under_lockrun = with(with(kTorchrun, "LOCKSTEP_STORE_HOSTED", "1"), "LOCKSTEP_STORE_PORT", "31000");
  EXPECT_EQ(read(under_lockrun).master_port, 31000) << "MASTER_PORT is left to the program";
  EXPECT_NE(refusal(with(under_agent, "MASTER_PORT", "65535")).find("MASTER_PORT=65535"), std::string::npos);
}

TEST(JobEnvironment, KubernetesSetsNoLocalRank) {
  const JobEnvironment job = read(without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  EXPECT_EQ(job.place, (Place{3, 4, 0, 1}));
  EXPECT_FALSE(job.master_is_named_for_others);
  const Variables pod =
      with(without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"), "KUBERNETES_SERVICE_HOST", "10.96.0.1");
  EXPECT_TRUE(read(pod).master_is_named_for_others);
  EXPECT_FALSE(read(with(kTorchrun, "KUBERNETES_SERVICE_HOST", "10.96.0.1")).master_is_named_for_others)
      << "several ranks in one pod";
}

TEST(JobEnvironment, AnAddressMayHaveBrackets) {
  EXPECT_EQ(read(with(kTorchrun, "MASTER_ADDR", "[fd00::1]")).master_host, "fd00::1");
}

TEST(JobEnvironment, WhoeverIsARankAlreadyStartsNone) {
  const auto rank = [](const Variables& variables) {
    return is_rank([&](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_FALSE(rank({}));
  EXPECT_TRUE(rank({{"RANK", "0"}}));
  EXPECT_TRUE(rank({{"OMPI_COMM_WORLD_RANK", "0"}}));
  EXPECT_TRUE(rank({{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}}));
  EXPECT_TRUE(rank({{"PMIX_RANK", "0"}})) << "of which it is told when it meets the others";
  EXPECT_FALSE(rank({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})) << "a batch script";
  EXPECT_TRUE(rank({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}));
}

TEST(JobEnvironment, AWorldOfOneNeedsNoAddress) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).kind, Kind::kAlone);
}

TEST(JobEnvironment, OpenMpisVariables) {
  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "123"}};
  const JobEnvironment job = read(mpi);
  EXPECT_EQ(job.kind, Kind::kOneMachine);
  EXPECT_EQ(job.place, (Place{1, 2, 1, 2}));
  EXPECT_NE(job.job_id, read(with(mpi, "PMIX_NAMESPACE", "124")).job_id) << "two jobs do not meet";
  EXPECT_EQ(job.job_id, read(with(mpi, "OMPI_COMM_WORLD_RANK", "0")).job_id) << "ranks of one job do";
  EXPECT_NE(refusal(with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1")), "accepted");
  const Variables machines = with(with(mpi, "OMPI_COMM_WORLD_SIZE", "4"), "OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  EXPECT_EQ(read(machines).kind, Kind::kMpi);
  EXPECT_EQ(read(machines).place, (Place{1, 4, 1, 2}));
  const JobEnvironment at = read(with(with(machines, "MASTER_ADDR", "10.0.0.1"), "MASTER_PORT", "1234"));
  EXPECT_EQ(at.kind, Kind::kAddress) << "an address needs no MPI";
  EXPECT_EQ(at.place, (Place{1, 4, 1, 2}));
  EXPECT_EQ(at.master_port, 1234);
  EXPECT_NE(refusal(without(mpi, "PMIX_NAMESPACE")).find("nothing names the job"), std::string::npos);
  Variables both = mpi;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(read(both).place.rank, 3) << "RANK comes first";
}

// Rank 1's end of the socket to the proxy, which is this process here.
class HydrasVariables : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    variables_["PMI_FD"] = std::to_string(ends_[1]);
  }
  void TearDown() override {
    for (const int end : ends_) ::close(end);
  }
  std::array<int, 2> ends_ = {-1, -1};
  Variables variables_ = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
};

TEST_F(HydrasVariables, MakeAJobOfOneMachine) {
  const JobEnvironment job = read(variables_);
  EXPECT_EQ(job.kind, Kind::kOneMachine);
  EXPECT_EQ(job.place, (Place{1, 2, 1, 2}));
  EXPECT_EQ(job.job_id.rfind("hydra-" + std::to_string(::getpid()) + "-", 0), 0u) << job.job_id;
  EXPECT_EQ(job.job_id, read(with(with(variables_, "PMI_RANK", "0"), "MPI_LOCALRANKID", "0")).job_id)
      << "ranks of one job meet";
  EXPECT_NE(refusal(with(variables_, "PMI_RANK", "2")), "accepted");
}

// The ranks of a job read the name of their proxy one after the other, and it grows meanwhile.
TEST_F(HydrasVariables, NameAJobThatKeepsItsName) {
  const std::string before = read(variables_).job_id;
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  void* const more = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(more, MAP_FAILED);
  EXPECT_EQ(read(variables_).job_id, before);
  ::munmap(more, kBytes);
}

TEST_F(HydrasVariables, OfOneRankNeedNoSocket) {
  const JobEnvironment job = read(
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}, {"PMI_FD", "987654"}});
  EXPECT_EQ(job.kind, Kind::kAlone);
  EXPECT_EQ(job.place, (Place{0, 1, 0, 1}));
}

// srun starts the proxies of an allocation, and the ranks inherit the proxies' variables.
TEST_F(HydrasVariables, ComeBeforeSlurms) {
  const Variables proxys = {{"SLURM_PROCID", "0"},   {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"},
                            {"SLURM_NODEID", "0"},   {"SLURM_LOCALID", "0"}, {"SLURM_TASKS_PER_NODE", "1(x2)"},
                            {"SLURM_JOB_ID", "4711"}};
  variables_.insert(proxys.begin(), proxys.end());
  EXPECT_EQ(read(variables_).place, (Place{1, 2, 1, 2}));
}

TEST_F(HydrasVariables, AcrossMachinesNeedAnAddress) {
  const Variables machines = with(variables_, "PMI_SIZE", "4");
  EXPECT_NE(refusal(machines).find("PMI_SIZE=4 but MPI_LOCALNRANKS=2"), std::string::npos) << refusal(machines);
  const JobEnvironment job = read(with(with(machines, "MASTER_ADDR", "[fd00::1]"), "MASTER_PORT", "1234"));
  EXPECT_EQ(job.kind, Kind::kAddress);
  EXPECT_EQ(job.place, (Place{1, 4, 1, 2}));
  EXPECT_EQ(job.master_host, "fd00::1");
}

TEST_F(HydrasVariables, ThatSayTooLittleAreRefused) {
  for (const char* name : {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"})
    EXPECT_NE(refusal(without(variables_, name)).find(std::string(name) + " is not"), std::string::npos)
        << refusal(without(variables_, name));
  for (const Variables& unnamed : {without(variables_, "PMI_FD"), with(variables_, "PMI_FD", "987654")})
    EXPECT_NE(refusal(unnamed).find("PMI_FD="), std::string::npos) << refusal(unnamed);
}

TEST(JobEnvironment, ALauncherThatIsNotUnderstoodIsNoWorldOfOne) {
  for (const char* name : {"PMI_RANK", "PMI_ID", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID",
                           "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK"}) {
    EXPECT_NE(refusal({{name, "0"}}).find(std::string(name) + "=0 shows that"), std::string::npos)
        << refusal({{name, "0"}});
    EXPECT_EQ(read({{name, "0"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}).kind, Kind::kAlone);
  }
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).kind, Kind::kAlone) << "it says so itself";
}

TEST(JobEnvironment, WhatKubeflowsTrainerSetsIsNoWorldOfOne) {
  const Variables pod = {{"PET_NNODES", "2"},
                         {"PET_NODE_RANK", "1"},
                         {"PET_NPROC_PER_NODE", "1"},
                         {"PET_MASTER_ADDR", "a"},
                         {"PET_MASTER_PORT", "29400"}};
  EXPECT_NE(refusal(pod).find("PET_NNODES=2 is for a launcher"), std::string::npos) << refusal(pod);
  EXPECT_NE(refusal(pod).find("Start it by lockrun"), std::string::npos) << refusal(pod);
  EXPECT_NE(refusal(with(with(pod, "PET_NNODES", "1"), "PET_NPROC_PER_NODE", "auto")).find("PET_NPROC_PER_NODE=auto"),
            std::string::npos);
  EXPECT_EQ(read(with(pod, "PET_NNODES", "1")).kind, Kind::kAlone) << "one rank is what they ask for";
  EXPECT_EQ(read(with(with(pod, "RANK", "0"), "WORLD_SIZE", "1")).kind, Kind::kAlone) << "a rank of a launcher";
  const auto lookup = [&](const char* name) -> std::optional<std::string> {
    const auto found = pod.find(name);
    return found == pod.end() ? std::nullopt : std::optional(found->second);
  };
  EXPECT_TRUE(is_rank(lookup)) << "spawn() makes no job of each pod";
}

TEST(JobEnvironment, PmisVariablesAreSrunsAndTheOthersNever) {
  const Variables task = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "1"}};
  const Variables one_of_two = {{"SLURM_PROCID", "1"},  {"SLURM_STEP_ID", "0"},        {"SLURM_NTASKS", "2"},
                                {"SLURM_LOCALID", "1"}, {"SLURM_TASKS_PER_NODE", "2"}, {"SLURM_JOB_ID", "4711"}};
  for (const char* name : {"PMI_RANK", "PMI_ID", "PMIX_RANK"}) {
    EXPECT_EQ(read(with(task, name, "0")).kind, Kind::kAlone);
    EXPECT_EQ(read(with(one_of_two, name, "1")).place, (Place{1, 2, 1, 2}));
  }
  for (const char* name : {"MV2_COMM_WORLD_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK"})
    for (const Variables& inherited : {task, one_of_two})
      EXPECT_NE(refusal(with(inherited, name, "1")).find(std::string(name) + "=1 shows that"), std::string::npos)
          << name;
  EXPECT_EQ(read(with(with(one_of_two, "FLUX_TASK_RANK", "0"), "FLUX_JOB_SIZE", "1")).place, (Place{1, 2, 1, 2}));
}

TEST(JobEnvironment, RefusalsNameTheVariable) {
  EXPECT_NE(refusal({{"RANK", "1"}}).find("WORLD_SIZE is not"), std::string::npos) << refusal({{"RANK", "1"}});
  EXPECT_NE(refusal({{"WORLD_SIZE", "2"}}).find("RANK is not"), std::string::npos);
  EXPECT_NE(refusal(with(kTorchrun, "WORLD_SIZE", "four")).find("WORLD_SIZE='four' is not a whole number"),
            std::string::npos);
  EXPECT_NE(refusal(with(kTorchrun, "WORLD_SIZE", "4x")), "accepted");
  EXPECT_NE(refusal(with(kTorchrun, "WORLD_SIZE", "99999999999999999999")), "accepted");
  EXPECT_NE(refusal(with(kTorchrun, "RANK", "4")).find("rank 4 does not exist in a world of 4"), std::string::npos);
  EXPECT_NE(refusal(with(kTorchrun, "RANK", "-1")), "accepted");
  EXPECT_NE(refusal(with(kTorchrun, "LOCAL_RANK", "2")), "accepted");
  EXPECT_NE(refusal(without(kTorchrun, "MASTER_ADDR")).find("MASTER_ADDR is not"), std::string::npos);
  EXPECT_NE(refusal(without(kTorchrun, "MASTER_PORT")).find("MASTER_PORT is not"), std::string::npos);
  EXPECT_NE(refusal(with(kTorchrun, "MASTER_PORT", "65536")), "accepted");
}

TEST(JobEnvironment, TheTokenComesFromAVariableOrAFile) {
  EXPECT_EQ(read({{"LOCKSTEP_TOKEN", " secret\n"}}).token, "secret");
  EXPECT_NE(refusal({{"LOCKSTEP_TOKEN", " \n"}}).find("LOCKSTEP_TOKEN"), std::string::npos);
  const std::string path =
      ::testing::TempDir() + "lockstep_token_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed());
  std::ofstream(path) << "\n from a file\r\n\n";
  EXPECT_EQ(read({{"LOCKSTEP_TOKEN_FILE", path}}).token, "from a file");
  std::ofstream(path) << " \n";
  EXPECT_NE(refusal({{"LOCKSTEP_TOKEN_FILE", path}}).find(path + " is empty"), std::string::npos);
  std::remove(path.c_str());
  EXPECT_NE(refusal({{"LOCKSTEP_TOKEN_FILE", path}}).find(path + " cannot be read: No such file"), std::string::npos);
  EXPECT_NE(refusal({{"LOCKSTEP_TOKEN_FILE", "/proc"}}).find("/proc cannot be read: Is a directory"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
