// PET_... variables as Kubeflow's Trainer sets them in each pod.
#include "src/launch/launchers/torchrun_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "launcher/command_line.h"
#include "tests/support/message_of.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

const Variables kPod = {{"PET_NNODES", "2"},
                        {"PET_NODE_RANK", "1"},
                        {"PET_NPROC_PER_NODE", "4"},
                        {"PET_MASTER_ADDR", "train-node-0-0.train"},
                        {"PET_MASTER_PORT", "29400"}};

launch::LaunchSpec spec_of(Words words, const Variables& changes = {}) {
  words.push_back("./train");
  Variables variables = kPod;
  for (const auto& [name, value] : changes) variables[name] = value;
  const auto decision = parse_command_line(words, [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  });
  return std::get<launch::LaunchSpec>(decision);
}

TEST(TorchrunEnvironment, IsTakenAsFlags) {
  const launch::LaunchSpec spec = spec_of({});
  EXPECT_EQ(spec.nodes, 2);
  EXPECT_EQ(spec.node_rank, 1);
  EXPECT_EQ(spec.ranks, 4);
  EXPECT_EQ(spec.master_host, "train-node-0-0.train");
  EXPECT_EQ(spec.master_port, 29400);
  EXPECT_EQ(spec_of({}, {{"PET_NPROC_PER_NODE", "gpu"}}).ranks_from, launch::LaunchSpec::RanksFrom::kGpus);
  EXPECT_EQ(spec_of({}, {{"PET_NNODES", "2:2"}}).nodes, 2);
}

TEST(TorchrunEnvironment, FlagsComeFirst) {
  const launch::LaunchSpec spec =
      spec_of({"-n", "2", "--nnodes", "3", "--node-rank=2", "--master-addr", "other", "--master-port", "7"});
  EXPECT_EQ(spec.ranks, 2);
  EXPECT_EQ(spec.nodes, 3);
  EXPECT_EQ(spec.node_rank, 2);
  EXPECT_EQ(spec.master_host, "other");
  EXPECT_EQ(spec.master_port, 7);
  EXPECT_EQ(spec_of({"--devices", "cpu:2x", "--nnodes=1"}).ranks, 2);
  EXPECT_EQ(spec_of({"--ps", "1", "--workers", "2", "--standalone"}).ranks, 3);
  for (const Words& alone : {Words{"--standalone"}, Words{"--nnodes", "1"}}) {
    EXPECT_EQ(spec_of(alone).nodes, 1);
    EXPECT_EQ(spec_of(alone).ranks, 4);
  }
}

TEST(TorchrunEnvironment, OfARankIsItsLaunchers) {
  for (const char* launchers : {"LOCAL_RANK", "LOCKSTEP_STORE_HOSTED"}) {
    const launch::LaunchSpec spec = spec_of({"-n", "2"}, {{"RANK", "0"}, {launchers, "0"}});
    EXPECT_EQ(spec.nodes, 1);
    EXPECT_EQ(spec.ranks, 2);
  }
}

// PyTorchJob also sets RANK and WORLD_SIZE in each pod.
TEST(TorchrunEnvironment, OfAPodWithARankIsTaken) {
  const launch::LaunchSpec spec = spec_of({"-n", "2"}, {{"RANK", "1"}, {"WORLD_SIZE", "8"}});
  EXPECT_EQ(spec.nodes, 2);
  EXPECT_EQ(spec.node_rank, 1);
  EXPECT_EQ(spec.ranks, 2);
}

TEST(TorchrunEnvironment, AFlagNextToItsValueComesFirstToo) { EXPECT_EQ(spec_of({"-n3"}).ranks, 3); }

TEST(TorchrunEnvironment, ContradictionsAreErrorsWithTheVariable) {
  const auto error = [](const Variables& changes) { return message_of([&] { spec_of({}, changes); }); };
  EXPECT_THAT(error({{"PET_NODE_RANK", "2"}}), AllOf(HasSubstr("PET_NODE_RANK=2"), HasSubstr("PET_NNODES=2")));
  EXPECT_THAT(error({{"PET_NODE_RANK", "x"}}), HasSubstr("PET_NODE_RANK='x'"));
  EXPECT_THAT(error({{"PET_NODE_RANK", ""}}), HasSubstr("--node-rank I, is missing"));
  EXPECT_THAT(error({{"PET_MASTER_ADDR", ""}}), HasSubstr("--master-addr A, is missing"));
  EXPECT_THAT(error({{"PET_MASTER_PORT", "70000"}}), HasSubstr("PET_MASTER_PORT=70000"));
  EXPECT_THAT(error({{"PET_NPROC_PER_NODE", "many"}}), HasSubstr("PET_NPROC_PER_NODE='many'"));
  for (const Variables& further : {Variables{}, Variables{{"PET_NODE_RANK", ""}}}) {
    const auto with = [&](const char* nodes) {
      Variables changes = further;
      changes["PET_NNODES"] = nodes;
      return error(changes);
    };
    EXPECT_THAT(with("two"), HasSubstr("PET_NNODES='two'"));
    EXPECT_THAT(with("0"), HasSubstr("PET_NNODES=0"));
    EXPECT_THAT(with("1:4"), AllOf(HasSubstr("PET_NNODES=1:4"), HasSubstr("does not support elastic nodes")));
  }
}

}  // namespace
}  // namespace lockstep::launcher
