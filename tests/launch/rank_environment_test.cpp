#include "src/launch/supervise/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace lockstep::launch {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using Changes = std::map<std::string, std::optional<std::string>>;

Changes changes(const JobFacts& job, int rank, const std::map<std::string, std::string>& inherited = {}) {
  Changes all;
  for (auto& [name, value] : rank_environment(job, rank, [&](const char* wanted) -> std::optional<std::string> {
         const auto found = inherited.find(wanted);
         return found == inherited.end() ? std::nullopt : std::optional(found->second);
       })) {
    EXPECT_TRUE(all.emplace(name, value).second) << name << " is set twice";
  }
  return all;
}

JobFacts facts() {
  JobFacts job;
  job.ranks = job.world_size = 4;
  job.master_host = "127.0.0.1";
  job.master_port = 12345;
  job.store_port = 23456;
  job.fresh_token = "secret";
  job.threads = 2;
  job.terminal_width = 132;
  return job;
}

TEST(RankEnvironment, EverythingARankNeeds) {
  const Changes expected = {{"RANK", "2"},
                            {"LOCAL_RANK", "2"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"GROUP_RANK", "0"},
                            {"GROUP_WORLD_SIZE", "1"},
                            {"NODE_RANK", "0"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", "12345"},
                            {"LOCKSTEP_STORE_PORT", "23456"},
                            {"LOCKSTEP_STORE_HOSTED", "1"},
                            {"LOCKSTEP_TOKEN", "secret"},
                            {"LOCKSTEP_TERMINAL_WIDTH", "132"},
                            {"OMP_NUM_THREADS", "2"}};
  EXPECT_EQ(changes(facts(), 2), expected);
}

TEST(RankEnvironment, TheAttemptOfAJobThatMayRestart) {
  JobFacts job = facts();
  EXPECT_EQ(changes(job, 0).count("LOCKSTEP_RESTART_COUNT"), 0U);
  job.attempt = 2;
  job.max_restarts = 5;
  job.attempt_id = "a text";
  EXPECT_EQ(changes(job, 0)["LOCKSTEP_RESTART_COUNT"], "2");
  EXPECT_EQ(changes(job, 0)["LOCKSTEP_ATTEMPT"], "a text");
  EXPECT_EQ(changes(job, 0)["LOCKSTEP_MAX_RESTARTS"], "5");
  const Changes inner =
      changes(facts(), 0, {{"LOCKSTEP_RESTART_COUNT", "2"}, {"LOCKSTEP_MAX_RESTARTS", "5"}, {"LOCKSTEP_ATTEMPT", "x"}});
  EXPECT_EQ(inner.at("LOCKSTEP_RESTART_COUNT"), std::nullopt) << "an outer job's";
  EXPECT_EQ(inner.at("LOCKSTEP_MAX_RESTARTS"), std::nullopt);
  EXPECT_EQ(inner.at("LOCKSTEP_ATTEMPT"), std::nullopt);
}

TEST(RankEnvironment, OnOneOfSeveralNodes) {
  JobFacts job = facts();
  job.world_size = 9;
  job.first_rank = 3;
  job.node = 1;
  job.nodes = 3;
  const Changes all = changes(job, 2);
  EXPECT_EQ(all.at("RANK"), "5");
  EXPECT_EQ(all.at("LOCAL_RANK"), "2");
  EXPECT_EQ(all.at("WORLD_SIZE"), "9");
  EXPECT_EQ(all.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(all.at("GROUP_RANK"), "1");
  EXPECT_EQ(all.at("GROUP_WORLD_SIZE"), "3");
  EXPECT_EQ(all.at("NODE_RANK"), "1");
  EXPECT_EQ(all.at("OMP_NUM_THREADS"), "2");
}

TEST(RankEnvironment, TasksOfAParameterServer) {
  JobFacts job = facts();
  job.tasks = {.servers = 2, .workers = 4};
  job.world_size = 6;
  job.first_rank = 2;
  const Changes worker = changes(job, 1), server = changes(job, 2);
  EXPECT_EQ(worker.at("LOCKSTEP_JOB"), "worker");
  EXPECT_EQ(worker.at("LOCKSTEP_TASK_INDEX"), "3");
  EXPECT_EQ(server.at("LOCKSTEP_JOB"), "ps");
  EXPECT_EQ(server.at("LOCKSTEP_TASK_INDEX"), "0");
  EXPECT_EQ(server.at("LOCKSTEP_NUM_PS"), "2");
  EXPECT_EQ(server.at("LOCKSTEP_NUM_WORKERS"), "4");
  EXPECT_EQ(job.tasks.name_of(3), "worker:3");
  EXPECT_EQ(job.tasks.name_of(5), "ps:1");
  EXPECT_EQ(job.tasks.servers_among(0, 3), 0);
  EXPECT_EQ(job.tasks.servers_among(3, 3), 2);
  EXPECT_EQ(job.tasks.servers_among(5, 1), 1);
  EXPECT_EQ(facts().tasks.name_of(3), "") << "ranks that are equals";
  EXPECT_EQ(facts().tasks.servers_among(0, 4), 0);
}

TEST(RankEnvironment, TheTaskOfAnOuterJobIsNotThatOfTheseRanks) {
  const std::map<std::string, std::string> outer = {{"LOCKSTEP_JOB", "worker"},
                                                    {"LOCKSTEP_TASK_INDEX", "1"},
                                                    {"LOCKSTEP_NUM_PS", "2"},
                                                    {"LOCKSTEP_NUM_WORKERS", "4"}};
  const Changes all = changes(facts(), 0, outer);
  for (const auto& [name, value] : outer) {
    ASSERT_THAT(all, Contains(Key(name)));
    EXPECT_EQ(all.at(name), std::nullopt) << name;
  }
}

TEST(RankEnvironment, TheUsersOwnStays) {
  JobFacts job = facts();
  job.fresh_token.clear();
  const Changes all = changes(job, 0, {{"OMP_NUM_THREADS", "7"}, {"LOCKSTEP_TOKEN", "mine"}});
  EXPECT_THAT(all, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_THAT(all, Not(Contains(Key("LOCKSTEP_TOKEN"))));
}

TEST(RankEnvironment, AnOuterTerminalsWidthIsRemovedFromALog) {
  JobFacts job = facts();
  job.terminal_width.reset();
  const Changes all = changes(job, 0, {{"LOCKSTEP_TERMINAL_WIDTH", "80"}});
  ASSERT_THAT(all, Contains(Key("LOCKSTEP_TERMINAL_WIDTH")));
  EXPECT_EQ(all.at("LOCKSTEP_TERMINAL_WIDTH"), std::nullopt);
}

TEST(RankEnvironment, AFolderForFlightRecordsOnlyWhenOneIsNamed) {
  EXPECT_THAT(changes(facts(), 0), Not(Contains(Key("LOCKSTEP_FLIGHT_DIR"))));
  JobFacts job = facts();
  job.flight_dir = "/records";
  EXPECT_EQ(changes(job, 1).at("LOCKSTEP_FLIGHT_DIR"), "/records");
}

TEST(RankEnvironment, ATerminalThatEndsInALogIsDumb) {
  JobFacts job = facts();
  job.has_terminals = true;
  EXPECT_THAT(changes(job, 0), Not(Contains(Key("TERM"))));
  job.terminal_width.reset();
  EXPECT_EQ(changes(job, 0)["TERM"], "dumb");
  job.has_terminals = false;
  EXPECT_THAT(changes(job, 0), Not(Contains(Key("TERM"))));
}

}  // namespace
}  // namespace lockstep::launch
