// srun's lists and numbers, and the job that results from them.
#include "src/comm/rendezvous/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = JobEnvironment::Kind;
using Variables = std::map<std::string, std::string>;

JobEnvironment read_job(const Variables& variables) {
  return read_job_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Variables with(Variables variables, const Variables& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}

// Task 5 of 6, the only one of node 2.
const Variables kTask = {{"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_ID", "3"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_NTASKS", "6"},
                         {"SLURM_TASKS_PER_NODE", "3,2,1"},
                         {"SLURM_JOB_NODELIST", "node[07-09,11],gpu3"}};

TEST(Slurm, TasksPerNode) {
  const auto parse = [](const std::string& value) { return slurm::parse_tasks_per_node("X", value); };
  EXPECT_THAT(parse("4"), ElementsAre(4));
  EXPECT_THAT(parse("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(parse("1,16(x2),3"), ElementsAre(1, 16, 16, 3));
  for (const char* bad :
       {"", "x", "2(3)", "2(x", "2(x3", "2(x)", "2,", ",2", "0", "2 ", "-1", "2(x0)", "99999999999", "1(x99999999)"})
    EXPECT_THAT(message_of([&] { parse(bad); }), HasSubstr(std::string("X='") + bad)) << bad;
}

TEST(Slurm, FirstHost) {
  const auto first = [](const std::string& value) { return slurm::first_host("X", value); };
  EXPECT_EQ(first("alpha"), "alpha");
  EXPECT_EQ(first("alpha,beta"), "alpha");
  EXPECT_EQ(first("node[07-09,11],gpu3"), "node07");
  EXPECT_EQ(first("gpu3,node[07-09]"), "gpu3");
  EXPECT_EQ(first("rack[2-3]node[004,006]-ib.cluster,x"), "rack2node004-ib.cluster");
  EXPECT_EQ(first("10.0.0.[5-7]"), "10.0.0.5");
  for (const char* bad : {"", ",", "node[", "node[]", "node[x]", "node[1", "node]", "a b"})
    EXPECT_THAT(message_of([&] { first(bad); }), HasSubstr(std::string("X='") + bad)) << bad;
}

TEST(Slurm, Ports) {
  EXPECT_EQ(slurm::first_port("X", "12000-12003"), 12000);
  EXPECT_EQ(slurm::first_port("X", "12000,12010"), 12000);
  EXPECT_EQ(slurm::first_port("X", "12000"), 12000);
  for (const char* bad : {"", "x", "0", "70000", "12000x"})
    EXPECT_THAT(message_of([&] { slurm::first_port("X", bad); }), HasSubstr(std::string("X='") + bad)) << bad;
}

TEST(Slurm, StepsOfAJobHavePortsOfTheirOwn) {
  EXPECT_EQ(slurm::port_of_step(4711, 3), 22493);
  EXPECT_EQ(slurm::port_of_step(0, 0), 20000);
  EXPECT_EQ(slurm::port_of_step(4'294'967'295, 4'294'967'295), 27320);
  std::set<int> ports;
  for (long step = 0; step < 9973; ++step) ports.insert(slurm::port_of_step(4711, step));
  EXPECT_EQ(ports.size(), 9973u);
  EXPECT_GE(*ports.begin(), 20000);
  EXPECT_LT(*ports.rbegin(), 30000);
  ports.clear();
  for (long job = 4711; job < 4721; ++job)
    for (long step = 0; step < 300; ++step)
      EXPECT_TRUE(ports.insert(slurm::port_of_step(job, step)).second) << job << " " << step;
}

TEST(Slurm, ATaskOfAStepOnSeveralMachines) {
  const JobEnvironment job = read_job(kTask);
  EXPECT_EQ(job.kind, Kind::kAddress);
  EXPECT_EQ(job.place, (Place{5, 6, 0, 1}));
  EXPECT_EQ(job.master_host, "node07");
  EXPECT_EQ(job.master_port, slurm::port_of_step(4711, 3));
  EXPECT_EQ(job.host_source, "the first host of SLURM_JOB_NODELIST");
  EXPECT_EQ(job.port_source, "made of SLURM_JOB_ID and SLURM_STEP_ID");
  EXPECT_TRUE(job.master_is_named_for_others);
  EXPECT_FALSE(job.store_is_hosted);
}

TEST(Slurm, TheStepsOwnVariablesComeFirst) {
  const JobEnvironment job = read_job(with(kTask, {{"SLURM_STEP_NUM_TASKS", "8"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "4,2(x2)"},
                                                   {"SLURM_STEP_NODELIST", "other[1-3]"},
                                                   {"SLURM_STEP_RESV_PORTS", "12000-12003"}}));
  EXPECT_EQ(job.place, (Place{5, 8, 0, 2}));
  EXPECT_EQ(job.master_host, "other1");
  EXPECT_EQ(job.master_port, 12000);
  EXPECT_EQ(job.port_source, "the first of SLURM_STEP_RESV_PORTS");
}

TEST(Slurm, TheUsersAddressAndPortComeBeforeAll) {
  const JobEnvironment job = read_job(with(kTask, {{"MASTER_ADDR", "[fd00::1]"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(job.master_host, "fd00::1");
  EXPECT_EQ(job.master_port, 1234);
  EXPECT_EQ(job.host_source + job.port_source, "MASTER_ADDRMASTER_PORT");
}

TEST(Slurm, OnOneMachineNoAddressIsNeeded) {
  const Variables one = with(kTask, {{"SLURM_TASKS_PER_NODE", "6"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "5"}});
  const JobEnvironment job = read_job(one);
  EXPECT_EQ(job.kind, Kind::kOneMachine);
  EXPECT_EQ(job.place, (Place{5, 6, 5, 6}));
  EXPECT_EQ(job.job_id, "slurm-4711-3");
  EXPECT_NE(read_job(with(one, {{"SLURM_STEP_ID", "4"}})).job_id, job.job_id) << "two steps do not meet";
}

TEST(Slurm, CountsThatDoNotAddUpSayNothing) {
  const JobEnvironment job = read_job(
      with(kTask, {{"SLURM_TASKS_PER_NODE", "9(x3)"}, {"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_LOCALID", "1"}}));
  EXPECT_EQ(job.place, (Place{5, 6, 1, 2}));
}

TEST(Slurm, ABatchScriptOrASingleTaskIsAlone) {
  Variables batch = kTask;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(read_job(batch).kind, Kind::kAlone);
  EXPECT_EQ(read_job(with(kTask, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})).kind, Kind::kAlone);
}

TEST(Slurm, LaunchersInsideAStepComeFirst) {
  EXPECT_EQ(read_job(with(kTask, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}))
                .place.world_size,
            2);
  const JobEnvironment mpi = read_job(with(kTask, {{"OMPI_COMM_WORLD_RANK", "1"},
                                                   {"OMPI_COMM_WORLD_SIZE", "4"},
                                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(mpi.kind, Kind::kMpi);
}

TEST(Slurm, ALoneWorldSizeMustAgree) {
  EXPECT_EQ(read_job(with(kTask, {{"WORLD_SIZE", "6"}})).place, (Place{5, 6, 0, 1}));
  EXPECT_THAT(message_of([] {
                read_job(with(kTask, {{"WORLD_SIZE", "4"}}));
              }),
              AllOf(HasSubstr("WORLD_SIZE=4"), HasSubstr("started 6")));
  const Variables alone = with(kTask, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(read_job(with(alone, {{"WORLD_SIZE", "1"}})).kind, Kind::kAlone);
  EXPECT_THAT(message_of([&] {
                read_job(with(alone, {{"WORLD_SIZE", "6"}}));
              }),
              AllOf(HasSubstr("WORLD_SIZE=6"), HasSubstr("started 1")));
}

TEST(Slurm, AStepThatWaitsForAStoppedRankCanBeEnded) {
  const auto hint = [](const Variables& variables) {
    return slurm::how_to_end_step([&](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_THAT(hint(kTask), AllOf(HasSubstr("-K"), HasSubstr("`scancel 4711.3`")));
  EXPECT_EQ(hint({}), "");
  EXPECT_EQ(hint(with(kTask, {{"RANK", "0"}})), "") << "lockrun ends its ranks itself";
}

TEST(Slurm, RefusalsNameTheVariable) {
  EXPECT_THAT(message_of([] {
                read_job(with(kTask, {{"SLURM_PROCID", "6"}}));
              }),
              HasSubstr("rank 6 does not exist in a world of 6"));
  EXPECT_THAT(message_of([] {
                read_job(with(kTask, {{"SLURM_TASKS_PER_NODE", "3,?"}}));
              }),
              HasSubstr("SLURM_TASKS_PER_NODE='3,?'"));
  Variables hostless = kTask;
  hostless.erase("SLURM_JOB_NODELIST");
  EXPECT_THAT(message_of([&] { read_job(hostless); }), HasSubstr("SLURM_JOB_NODELIST"));
}

}  // namespace
}  // namespace lockstep
