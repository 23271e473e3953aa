#include "launcher/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "tests/support/pattern.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::variant<launch::LaunchSpec, Information> parse(const std::vector<std::string>& words) {
  return parse_command_line(words, [](const char*) { return std::nullopt; });
}

launch::LaunchSpec spec_of(const std::vector<std::string>& words) { return std::get<launch::LaunchSpec>(parse(words)); }

std::string fault_of(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CommandLine, BothNamesOfTheRankCountInEveryForm) {
  EXPECT_EQ(spec_of({"-n", "3", "x"}).ranks, 3);
  EXPECT_EQ(spec_of({"-n3", "x"}).ranks, 3);
  EXPECT_EQ(spec_of({"--nproc-per-node", "3", "x"}).ranks, 3);
  EXPECT_EQ(spec_of({"--nproc-per-node=3", "x"}).ranks, 3);
}

TEST(CommandLine, SeveralNodesAsTorchrunsUsersWriteThem) {
  const std::vector<std::vector<std::string>> forms = {
      {"--nnodes", "3", "--node-rank", "1", "--master-addr", "head", "--master-port", "1234", "-n", "2", "x",
       "--node_rank"},
      {"--nnodes=3", "--node_rank=1", "--master_addr=head", "--master_port=1234", "--nproc_per_node=2", "x",
       "--node_rank"},
      {"--nnodes", "3", "--node_rank", "1", "--master_addr", "[head]", "--master_port", "1234", "--nproc_per_node", "2",
       "--", "x", "--node_rank"}};
  for (const auto& words : forms) {
    const auto spec = spec_of(words);
    EXPECT_EQ(spec.nodes, 3);
    EXPECT_EQ(spec.node_rank, 1);
    EXPECT_EQ(spec.master_host, "head");
    EXPECT_EQ(spec.master_port, 1234);
    EXPECT_EQ(spec.ranks, 2);
    EXPECT_THAT(spec.command, ElementsAre("x", "--node_rank"));
  }
  EXPECT_EQ(spec_of({"--nnodes", "2", "--node-rank", "0", "--master-addr", "[::1]", "-n", "1", "x"}).master_host,
            "::1");
  EXPECT_EQ(spec_of({"--nnodes", "2", "--node-rank", "0", "--master-addr", "a_b", "-n", "1", "x"}).master_host, "a_b");
  EXPECT_EQ(spec_of({"--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "-n", "1", "x"}).master_port, 29500);
  EXPECT_EQ(spec_of({"-n", "1", "x"}).master_port, 0) << "any free one";
  EXPECT_EQ(spec_of({"--master-port", "1234", "-n", "1", "x"}).master_port, 1234);
}

TEST(CommandLine, OneNodeNeedsNoneOfTheNodesFlags) {
  EXPECT_EQ(spec_of({"-n", "2", "x"}).nodes, 1);
  EXPECT_EQ(spec_of({"--nnodes", "1", "--node-rank", "0", "--master-addr", "head", "-n", "2", "x"}).nodes, 1);
  EXPECT_THAT(fault_of({"--node-rank", "1", "-n", "2", "x"}),
              HasSubstr("--node-rank 1 does not exist with --nnodes 1"));
}

TEST(CommandLine, WrongNodesAreNamed) {
  EXPECT_THAT(fault_of({"--nnodes", "2", "--master-addr", "a", "-n", "2", "x"}),
              HasSubstr("--node-rank I, is missing"));
  EXPECT_THAT(fault_of({"--nnodes", "2", "--node-rank", "1", "-n", "2", "x"}),
              HasSubstr("--master-addr A, is missing"));
  EXPECT_THAT(fault_of({"--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "-n", "2", "x"}),
              HasSubstr("--node-rank 2 does not exist with --nnodes 2"));
  EXPECT_THAT(fault_of({"--nnodes", "two", "-n", "2", "x"}), HasSubstr("--nnodes two: expected an integer"));
  EXPECT_THAT(
      fault_of({"--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "--master-port", "70000", "-n", "2", "x"}),
      HasSubstr("--master-port 70000"));
  EXPECT_THAT(fault_of({"--nnodes", "2", "--nnodes", "2", "-n", "2", "x"}),
              HasSubstr("--nnodes is given more than once"));
}

using RanksFrom = launch::LaunchSpec::RanksFrom;

TEST(CommandLine, TorchrunsWordsForTheRanksOfThisMachine) {
  EXPECT_EQ(spec_of({"-n", "2", "x"}).ranks_from, RanksFrom::kNumber);
  EXPECT_EQ(spec_of({"--nproc_per_node", "auto", "x"}).ranks_from, RanksFrom::kDevices);
  EXPECT_EQ(spec_of({"--nproc-per-node=gpu", "x"}).ranks_from, RanksFrom::kGpus);
  EXPECT_EQ(spec_of({"-n", "cpu", "x"}).ranks_from, RanksFrom::kCores);
}

TEST(CommandLine, TorchrunsStandaloneAndFixedNumbersOfNodes) {
  EXPECT_EQ(spec_of({"--standalone", "--nproc_per_node=2", "x"}).nodes, 1);
  EXPECT_EQ(spec_of({"--standalone", "--nnodes=1", "-n", "2", "x"}).ranks, 2);
  EXPECT_THAT(fault_of({"--standalone", "--nnodes=2", "--node-rank=0", "--master-addr=a", "-n", "2", "x"}),
              HasSubstr("--standalone is for one node, --nnodes 2 for several"));
  EXPECT_EQ(spec_of({"--nnodes=2:2", "--node-rank=0", "--master-addr=a", "-n", "2", "x"}).nodes, 2);
}

// The message says what to write instead.
TEST(CommandLine, TorchrunsOtherFlagsGetAHint) {
  EXPECT_THAT(fault_of({"--nnodes=1:4", "-n", "2", "x"}),
              HasSubstr("--nnodes 1:4: lockrun does not support elastic nodes; write their number"));
  const std::vector<std::pair<std::string, std::string>> hints = {{"--rdzv-backend", "--master-addr HOST"},
                                                                  {"--rdzv_endpoint=host:29400", "--master-port PORT"},
                                                                  {"--rdzv-id", "--node-rank I"},
                                                                  {"--log_dir", "redirect lockrun itself"},
                                                                  {"--tee", "redirect lockrun itself"},
                                                                  {"-r", "redirect lockrun itself"},
                                                                  {"-m", "python3 -m MODULE"},
                                                                  {"--no_python", "by its name"},
                                                                  {"--local-addr", "LOCKSTEP_INTERFACE"},
                                                                  {"--monitor_interval=5", "omit the flag"},
                                                                  {"-np", "write -n N"}};
  for (const auto& [flag, hint] : hints) {
    EXPECT_THAT(fault_of({flag, "value", "-n", "2", "x"}), HasSubstr(hint)) << flag;
    EXPECT_THAT(fault_of({"-n", "2", flag, "x"}), HasSubstr(hint)) << flag;
    EXPECT_EQ(spec_of({"-n", "2", "x", flag}).command.back(), flag) << "behind the program it is the program's";
  }
}

TEST(CommandLine, RestartsAreANumber) {
  EXPECT_EQ(spec_of({"-n", "2", "x"}).max_restarts, 0);
  EXPECT_EQ(spec_of({"--max-restarts", "3", "-n", "2", "x"}).max_restarts, 3);
  EXPECT_EQ(spec_of({"--max_restarts=0", "-n", "2", "x"}).max_restarts, 0);
  for (const char* value : {"-1", "often", "", "1.5"})
    EXPECT_THAT(fault_of({"--max-restarts", value, "-n", "2", "x"}),
                HasSubstr(std::string("--max-restarts ") + value + ": expected an integer from 0"));
  EXPECT_EQ(spec_of({"-n", "2", "--report", "/tmp/a.json", "x"}).report_file, "/tmp/a.json");
  EXPECT_EQ(spec_of({"-n", "2", "--report", "a.json", "x"}).report_file.front(), '/') << "ranks may be elsewhere";
  EXPECT_EQ(spec_of({"-n", "2", "x"}).interrupt_grace, std::chrono::seconds(5));
  EXPECT_EQ(spec_of({"-n", "2", "--grace-period", "90", "x"}).interrupt_grace, std::chrono::seconds(90));
  EXPECT_THAT(fault_of({"--grace-period", "-1", "-n", "2", "x"}), HasSubstr("--grace-period -1"));
  EXPECT_THAT(fault_of({"--report", "", "-n", "2", "x"}), HasSubstr("--report: the file's name is missing"));
}

TEST(CommandLine, FoldingAndTerminalsCanBeSwitchedOff) {
  EXPECT_TRUE(spec_of({"-n", "2", "x"}).fold);
  EXPECT_TRUE(spec_of({"-n", "2", "x"}).terminals);
  EXPECT_FALSE(spec_of({"-n", "2", "--no-fold", "x"}).fold);
  EXPECT_FALSE(spec_of({"-n", "2", "--no-terminal", "x"}).terminals);
}

TEST(CommandLine, ServersAndWorkers) {
  const auto spec = spec_of({"--ps", "2", "--workers=4", "x"});
  EXPECT_EQ(spec.servers, 2);
  EXPECT_EQ(spec.workers, 4);
  EXPECT_EQ(spec.ranks, 6);
  EXPECT_EQ(spec_of({"-n", "6", "--ps", "2", "--workers", "4", "x"}).ranks, 6);
  EXPECT_EQ(spec_of({"--devices", "cpu:3x", "--ps", "1", "--workers", "2", "x"}).ranks, 3);
  EXPECT_EQ(spec_of({"-n", "2", "x"}).servers, 0);
  EXPECT_FALSE(spec.allow_worker_failures);
  EXPECT_TRUE(spec_of({"--ps", "1", "--workers", "2", "--allow-worker-failures", "x"}).allow_worker_failures);
  EXPECT_THAT(fault_of({"--ps", "2", "x"}), HasSubstr("--ps 2 needs workers, which compute: --workers W"));
  EXPECT_THAT(fault_of({"--ps", "2", "--workers", "0", "x"}), HasSubstr("--ps 2 needs workers"));
  EXPECT_THAT(fault_of({"--workers", "4", "x"}),
              HasSubstr("--workers 4 needs servers, which hold the parameters: --ps P"));
  EXPECT_THAT(fault_of({"--ps", "0", "--workers", "4", "x"}), HasSubstr("for ranks without servers write -n 4"));
  EXPECT_THAT(fault_of({"-n", "5", "--ps", "2", "--workers", "4", "x"}),
              HasSubstr("--ps 2 --workers 4 are 6 ranks, and -n says 5: omit it"));
  EXPECT_THAT(fault_of({"-n", "gpu", "--ps", "2", "--workers", "4", "x"}), HasSubstr("-n says gpu"));
  EXPECT_THAT(fault_of({"--devices", "cpu:2x", "--ps", "2", "--workers", "4", "x"}),
              HasSubstr("are 6 ranks, and --devices says 2"));
  EXPECT_THAT(fault_of({"--ps", "-1", "--workers", "4", "x"}), HasSubstr("--ps -1: expected an integer from 0"));
}

TEST(CommandLine, ServersAndWorkersOnSeveralNodes) {
  const auto spec = spec_of(
      {"--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--ps", "1", "--workers", "4", "-n", "2", "x"});
  EXPECT_EQ(spec.ranks, 2);
  EXPECT_EQ(spec.servers + spec.workers, 5) << "of all nodes";
  EXPECT_THAT(fault_of({"--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--ps", "1", "--workers", "4", "x"}),
              HasSubstr("are 5 ranks on several nodes: the number on this node, -n N, is missing"));
}

TEST(CommandLine, TheProgramsFlagsAreItsOwn) {
  const auto spec = spec_of({"--no-prefix", "-n", "2", "train", "-n", "9", "--help", "--", "-x"});
  EXPECT_THAT(spec.command, ElementsAre("train", "-n", "9", "--help", "--", "-x"));
  EXPECT_EQ(spec.ranks, 2);
  EXPECT_FALSE(spec.prefix);
  EXPECT_TRUE(spec.bind_cores);
  EXPECT_THAT(spec_of({"-n", "2", "--no-bind", "--", "-strange-name", "a"}).command, ElementsAre("-strange-name", "a"));
  EXPECT_FALSE(spec_of({"-n", "2", "--no-bind", "x"}).bind_cores);
}

// Covers each flag in the usage that has a value: if the next word were taken for the program, --bogus would be the
// program's.
TEST(CommandLine, AFlagsValueIsNeverTheProgram) {
  const std::string usage = std::get<Information>(parse({"--help"})).text;
  const auto flags = lockstep::testing::find_matches_by_line(usage, "^  (-[a-z], |    )(--[a-z-]+) [A-Z]+ ");
  for (const auto& flag : flags) EXPECT_THAT(fault_of({flag[2], "value", "--bogus"}), HasSubstr("bogus")) << flag[2];
  EXPECT_GE(flags.size(), 8u) << usage;
  EXPECT_THAT(fault_of({"-n", "value", "--bogus"}), HasSubstr("bogus"));
}

TEST(CommandLine, Gpus) {
  EXPECT_EQ(spec_of({"-n", "2", "x"}).gpus, "") << "LOCKSTEP_DEVICE decides, or what there is";
  EXPECT_EQ(spec_of({"-n", "2", "x"}).share_gpu, 0);
  EXPECT_EQ(spec_of({"-n", "2", "--gpus", "1,0", "x"}).gpus, "1,0");
  EXPECT_EQ(spec_of({"-n", "2", "--gpus=GPU-8c9f", "--share_gpu=2", "x", "--gpus"}).share_gpu, 2);
  EXPECT_THAT(fault_of({"-n", "2", "--gpus", "two", "x"}),
              HasSubstr("--gpus two: 'two' is not a GPU; expected auto, all, none, or a list"));
  EXPECT_THAT(fault_of({"-n", "2", "--gpus", "", "x"}), HasSubstr("--gpus"));
  EXPECT_THAT(fault_of({"-n", "2", "--gpus", "0", "--gpus", "1", "x"}), HasSubstr("--gpus is given more than once"));
  EXPECT_THAT(fault_of({"-n", "2", "--share-gpu", "0", "x"}),
              HasSubstr("--share-gpu 0: expected an integer from 1 to 64"));
}

TEST(CommandLine, DevicesSayWhichAndHowManyRanks) {
  const launch::LaunchSpec halves = spec_of({"--devices", "cpu:2x", "x"});
  EXPECT_EQ(halves.ranks, 2);
  EXPECT_EQ(halves.share_gpu, 2);
  EXPECT_EQ(halves.gpus, "none");
  const launch::LaunchSpec one_of_three = spec_of({"-n", "1", "--devices=cpu:3x", "x"});
  EXPECT_EQ(one_of_three.ranks, 1);
  EXPECT_EQ(one_of_three.share_gpu, 3) << "a third of the cores";
  const launch::LaunchSpec gpus = spec_of({"--devices", "cuda:1:2x,cuda:3:2x", "x"});
  EXPECT_EQ(gpus.ranks, 4);
  EXPECT_EQ(gpus.gpus, "1,3");
  EXPECT_THAT(fault_of({"--devices", "cpu", "x"}), HasSubstr("--devices: 'cpu' is invalid: expected cpu:2x"));
  EXPECT_THAT(fault_of({"--devices", "cpu:2x", "--gpus", "0", "x"}), HasSubstr("omit --gpus and --share-gpu"));
  EXPECT_THAT(fault_of({"--devices", "cpu:2x,cuda:0:2x", "x"}), HasSubstr("on the CPU or on GPUs, not on both"));
  EXPECT_THAT(fault_of({"--devices", "cuda:0:1G+3G", "x"}), HasSubstr("ranks have equal parts of the memory"));
  EXPECT_THAT(fault_of({"--devices", "cuda:0:2x,cuda:1:3x", "x"}),
              HasSubstr("each GPU needs the same number of ranks"));
}

TEST(CommandLine, WrongFlagsAreNamed) {
  EXPECT_THAT(fault_of({"-n", "0", "x"}), HasSubstr("-n 0"));
  EXPECT_THAT(fault_of({"-n", "two", "x"}), HasSubstr("-n two"));
  EXPECT_THAT(fault_of({"-n", "2x", "x"}), HasSubstr("-n 2x"));
  EXPECT_THAT(fault_of({"-n", "99999", "x"}), HasSubstr("4096"));
  EXPECT_THAT(fault_of({"-n", "1", "-n", "2", "x"}), HasSubstr("more than once"));
  EXPECT_THAT(fault_of({"train"}), HasSubstr("-n N, is missing"));
  EXPECT_THAT(fault_of({}), HasSubstr("-n N, is missing"));
  EXPECT_THAT(fault_of({"-n"}), HasSubstr("missing an argument"));
  EXPECT_THAT(fault_of({"-n", "2"}), HasSubstr("the program is missing"));
  EXPECT_THAT(fault_of({"--bogus", "-n", "2", "x"}), HasSubstr("bogus"));
}

TEST(CommandLine, HelpAndVersionRunNothing) {
  EXPECT_THAT(
      std::get<Information>(parse({"--help"})).text,
      ::testing::AllOf(HasSubstr("--nproc-per-node"), HasSubstr("/dev/null"), HasSubstr("--gpus LIST"),
                       HasSubstr("--share-gpu K"), HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("lockrun topology")));
  EXPECT_THAT(std::get<Information>(parse({"--version"})).text, ::testing::StartsWith("lockrun "));
}

TEST(CommandLine, AFolderForFlightRecords) {
  const auto folder_of = [](const std::vector<std::string>& words) {
    return std::get<launch::LaunchSpec>(parse(words)).flight_dir;
  };
  EXPECT_EQ(folder_of({"-n", "2", "train"}), "");
  EXPECT_EQ(folder_of({"-n", "2", "--flight-dir", "/records", "train"}), "/records");
  EXPECT_EQ(folder_of({"--flight_dir=/records", "-n", "2", "train"}), "/records");
  EXPECT_EQ(folder_of({"--flight-dir", "records", "-n", "2", "train"}).front(), '/') << "ranks may be elsewhere";
}

}  // namespace
}  // namespace lockstep::launcher
