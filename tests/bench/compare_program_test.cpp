// bench/peers/compare with programs that only record how they were called: contestants, variables, errors and reports.
// Nothing is timed.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/lib/train_step_models.h"
#include "tests/bench/fake_peers.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;
namespace fs = std::filesystem;

std::set<std::string> contestants_of(const std::string& output) {
  std::set<std::string> found;
  for (const std::string& line : lines_of(output)) {
    const json row = json::parse(line);
    if (!row.contains("compared")) found.insert(row["contestant"]);
  }
  return found;
}

// -- --isa

struct IsaCase {
  const char* isa;
  Variables ours, theirs;
};

class CompareIsa : public ::testing::TestWithParam<IsaCase> {};

TEST_P(CompareIsa, SetsTheVariablesOfEachSide) {
  const IsaCase& expected = GetParam();
  const FakePeers fake(std::string("isa-") + expected.isa + "-", kAmx);
  const Variables callers = {{"LOCKSTEP_ISA", "baseline"}, {"ONEDNN_MAX_CPU_ISA", "SSE41"}};
  for (const Words& flags : {Words{"train_step"}, Words{"operators"}, Words{"all_reduce", "--sizes", "4"}}) {
    Words all = flags;
    all.insert(all.end(), {"--isa", expected.isa});
    const auto compare = fake.compare(all, callers);
    ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
    EXPECT_THAT(compare->output(), StartsWith("# Fake CPU, limited to " + std::string(expected.isa) + ", "));
    EXPECT_THAT(compare->output(), Not(HasSubstr("the caller has set")));
  }
  for (const char* program : {"build/bench/train_step", "build/bench/operators", "build/bench/all_reduce"})
    EXPECT_EQ(fake.limits(program), expected.ours) << program;
  for (const char* program : {"peers/venv/bin/torchrun", "peers/venv/bin/python", "path/mpirun"})
    EXPECT_EQ(fake.limits(program), expected.theirs) << program;
}

INSTANTIATE_TEST_SUITE_P(Each, CompareIsa,
                         ::testing::Values(IsaCase{"avx2",
                                                   {{"LOCKSTEP_ISA", "avx2"}},
                                                   {{"ATEN_CPU_CAPABILITY", "avx2"},
                                                    {"ONEDNN_MAX_CPU_ISA", "AVX2"},
                                                    {"MKL_ENABLE_INSTRUCTIONS", "AVX2"},
                                                    {"OMPI_MCA_op_avx_support", "SSE,SSE2,SSE3,SSE4.1,AVX,AVX2"}}},
                                           IsaCase{"avx512",
                                                   {{"LOCKSTEP_ISA", "avx512"}},
                                                   {{"ATEN_CPU_CAPABILITY", "avx512"},
                                                    {"ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"},
                                                    {"MKL_ENABLE_INSTRUCTIONS", "AVX512"}}},
                                           IsaCase{"amx",
                                                   {{"LOCKSTEP_ISA", "amx"}},
                                                   {{"ATEN_CPU_CAPABILITY", "avx512"},
                                                    {"ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX"},
                                                    {"MKL_ENABLE_INSTRUCTIONS", "AVX512_E4"}}}),
                         [](const auto& each) { return each.param.isa; });

TEST(Compare, ForcesNothingByDefaultAndNamesWhatTheCallerHasSet) {
  const FakePeers fake("best-", kAvx512);
  const auto plain = fake.compare({"train_step"});
  ASSERT_EQ(plain->wait(kPeersDeadline), 0) << plain->errors();
  EXPECT_THAT(lines_of(plain->output())[0], ContainsRegex("^# Fake CPU, avx512, [0-9]+ cores; pytorch 9.8.7$"));
  EXPECT_TRUE(fake.limits("build/bench/train_step").empty());
  EXPECT_TRUE(fake.limits("peers/venv/bin/torchrun").empty());
  const auto limited = fake.compare({"train_step"}, {{"LOCKSTEP_ISA", "avx2"}});
  ASSERT_EQ(limited->wait(kPeersDeadline), 0) << limited->errors();
  EXPECT_THAT(lines_of(limited->output())[0], HasSubstr("; the caller has set LOCKSTEP_ISA=avx2"));
}

TEST(Compare, NamesTheMachineInEachJsonLine) {
  const FakePeers fake("json-", kAvx512);
  for (const Words& flags : {Words{"train_step"}, Words{"operators"}, Words{"all_reduce", "--sizes", "4"}}) {
    Words all = flags;
    all.insert(all.end(), {"--json", "--isa", "avx2"});
    const auto compare = fake.compare(all);
    ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
    EXPECT_FALSE(compare->output().empty());
    for (const std::string& line : lines_of(compare->output())) {
      const json machine = json::parse(line)["machine"];
      EXPECT_EQ(machine["cpu"], "Fake CPU");
      EXPECT_EQ(machine["isa"], "avx2");
      EXPECT_GT(machine["cores"], 0);
      EXPECT_EQ(machine["versions"]["pytorch"], "9.8.7");
      EXPECT_EQ(machine["variables"]["LOCKSTEP_ISA"], "avx2");
    }
  }
}

TEST(Compare, RefusesAnInstructionSetThatTheProcessorLacks) {
  const FakePeers fake("lacks-", kAvx2);
  const auto said = [&](const std::string& isa) {
    const auto compare = fake.compare({"train_step", "--isa", isa});
    EXPECT_EQ(compare->wait(kPeersDeadline), 2) << compare->output();
    return compare->errors();
  };
  EXPECT_THAT(said("avx512"), HasSubstr("--isa avx512: this processor (Fake CPU) lacks it; it has avx2"));
  fake.cpuinfo("processor: 0\nFeatures: fp asimd\nCPU implementer: 0x41\nCPU part: 0xd0c\n");
  EXPECT_THAT(said("avx2"),
              HasSubstr("--isa avx2: this processor (implementer 0x41, part 0xd0c) lacks it; it has neon"));
  fake.cpuinfo("model name: Old CPU\nflags: fpu sse2\n");
  EXPECT_THAT(said("avx2"), HasSubstr("--isa avx2: this processor (Old CPU) lacks it; it has none of them"));
  EXPECT_EQ(fake.calls("build/bench/train_step"), "") << "nothing is measured";
}

TEST(Compare, NamesNeonOnArm) {
  const FakePeers fake("arm-", "");
  fake.cpuinfo("processor: 0\nFeatures: fp asimd\nCPU implementer: 0x41\nCPU part: 0xd0c\n");
  const auto compare = fake.compare({"train_step"});
  ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
  EXPECT_THAT(compare->output(), StartsWith("# implementer 0x41, part 0xd0c, neon, "));
}

// -- train_step

TEST(CompareTrainStep, ReportsTheBestFloat32VariantLast) {
  const FakePeers fake("variants-", kAvx512);
  const auto compare =
      fake.compare({"train_step", "--model", "gpt2", "--steps", "3", "--variants", "eager", "bf16", "compile"});
  ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
  EXPECT_EQ(lines_of(compare->output()).back(),
            "# gpt2, best of float32: pytorch compile takes 1.50 x the time of lockstep");
  EXPECT_THAT(compare->output(), ContainsRegex("pytorch eager +20.00 ms"));
  EXPECT_THAT(compare->output(), ContainsRegex("pytorch bf16 .*bfloat16: less exact"));
  const Words ours = lines_of(fake.calls("build/bench/train_step"));
  ASSERT_EQ(ours.size(), 2U);
  EXPECT_EQ(ours[0], "--model gpt2 --steps 3 --ranks 2 --json");
  EXPECT_EQ(ours[1], "--model gpt2 --steps 3 --ranks 2 --json --dtype bfloat16");
  const Words theirs = lines_of(fake.calls("peers/venv/bin/torchrun"));
  ASSERT_EQ(theirs.size(), 3U);
  EXPECT_THAT(theirs[0], HasSubstr("train_step_ddp.py --model gpt2 --steps 3 --tuned --variant eager"));
  EXPECT_THAT(theirs[1], HasSubstr("--variant compile"));
  EXPECT_THAT(theirs[2], HasSubstr("--variant bf16"));
}

TEST(CompareTrainStep, RunsEagerAndCompileByDefault) {
  const FakePeers fake("default-", kAvx512);
  const auto compare = fake.compare({"train_step", "--json"});
  ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
  EXPECT_EQ(contestants_of(compare->output()), (std::set<std::string>{"lockstep", "pytorch eager", "pytorch compile"}));
  const json last = json::parse(lines_of(compare->output()).back());
  EXPECT_EQ(last["compared"], "best of float32");
  EXPECT_EQ(last["contestant"], "pytorch compile");
  EXPECT_EQ(last["ratio"], 1.5);
}

TEST(CompareTrainStep, ComparesBfloat16WithBfloat16AndBothOfOurs) {
  const FakePeers fake("bf16-", kAvx512);
  fake.program("build/bench/train_step", R"(case "$*" in
*bfloat16*) echo '{"step_ms": 4, "parameters": 7}' ;;
*) echo '{"step_ms": 10, "parameters": 7}' ;;
esac)");
  const auto compare = fake.compare({"train_step", "--variants", "eager", "bf16"});
  ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
  const Words lines = lines_of(compare->output());
  ASSERT_GE(lines.size(), 3U);
  EXPECT_EQ(lines[lines.size() - 3], "# cifar10, bfloat16: pytorch bf16 takes 1.25 x the time of lockstep bfloat16");
  EXPECT_EQ(lines[lines.size() - 2],
            "# cifar10, our float32 to our bfloat16: lockstep takes 2.50 x the time of lockstep bfloat16");
  EXPECT_EQ(lines.back(), "# cifar10, best of float32: pytorch eager takes 2.00 x the time of lockstep");
}

TEST(CompareTrainStep, LeavesPyTorchsBfloat16OutIfTheInstructionsHaveNoSuchProducts) {
  const FakePeers fake("no-bf16-", kAvx512);
  const auto compare = fake.compare({"train_step", "--variants", "eager", "bf16", "--isa", "avx2", "--json"});
  ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
  EXPECT_THAT(compare->errors(), HasSubstr("PyTorch in bfloat16 is left out: avx2 of this processor has no products"));
  EXPECT_EQ(contestants_of(compare->output()),
            (std::set<std::string>{"lockstep", "lockstep bfloat16", "pytorch eager"}));
}

TEST(CompareTrainStep, LeavesCompileOutWithItsReasonIfItFails) {
  const FakePeers fake("no-compiler-", kAvx512);
  fake.program("peers/venv/bin/torchrun", R"(case "$*" in
*"--variant compile"*) echo 'torch.compile failed: no C++ compiler' >&2; echo 'ChildFailedError' >&2; exit 1 ;;
esac
echo '{"step_ms": 20}')");
  const auto compare = fake.compare({"train_step", "--json"});
  ASSERT_EQ(compare->wait(kPeersDeadline), 0) << compare->errors();
  EXPECT_THAT(compare->errors(), HasSubstr("compare: pytorch compile does not work here and is left out: "
                                           "torch.compile failed: no C++ compiler\n"));
  EXPECT_EQ(contestants_of(compare->output()), (std::set<std::string>{"lockstep", "pytorch eager"}));
  EXPECT_EQ(lines_of(fake.calls("peers/venv/bin/torchrun")).size(), 2U) << "it is not tried again";
}

TEST(CompareTrainStep, FailsIfEagerFails) {
  const FakePeers fake("no-eager-", kAvx512);
  fake.program("peers/venv/bin/torchrun", "echo 'no module torch' >&2; exit 1");
  const auto compare = fake.compare({"train_step"});
  EXPECT_EQ(compare->wait(kPeersDeadline), 1);
  EXPECT_THAT(compare->errors(), AllOf(HasSubstr("failed with 1:\nno module torch"), HasSubstr("running it again")));
}

TEST(CompareTrainStep, RefusesModelsOfDifferentSizes) {
  const FakePeers fake("sizes-", kAvx512);
  fake.program("peers/venv/bin/torchrun", R"(echo '{"step_ms": 20, "parameters": 8}')");
  const auto compare = fake.compare({"train_step", "--model", "gpt2"});
  EXPECT_EQ(compare->wait(kPeersDeadline), 1);
  EXPECT_THAT(compare->errors(), ContainsRegex("gpt2: .*torchrun has 8 parameters, but an earlier program has 7"));
}

constexpr const char* kModels[] = {"cifar10", "cifar10-nolrn", "mlp", "resnet20", "gpt", "gpt2", "gpt2-124m"};

std::int64_t parameters_of(const char* model) {
  std::int64_t count = 0;
  for (const Tensor& parameter : bench::make_model(model, 0).module->parameters()) count += parameter.count();
  return count;
}

TEST(CompareTrainStep, Gpt2HasTheParametersOfGpt2Small) { EXPECT_EQ(parameters_of("gpt2"), 124'439'808); }

TEST(CompareTrainStep, PyTorchsModelsHaveAsManyParametersAsOurs) {
  const char* peers = std::getenv("PEERS_BUILD");
  const std::string python = std::string(peers == nullptr ? "" : peers) + "/venv/bin/python";
  if (!fs::exists(python))
    GTEST_SKIP() << "PEERS_BUILD names no folder in which bench/peers/setup has installed PyTorch";
  // Tensors of the device `meta` have shapes only.
  Child count({python, "-c", R"(import json, sys, torch
sys.path.insert(0, sys.argv[1])
import train_step_ddp as peer
with torch.device("meta"):
    models = {name: peer.make(name, tuned=False)[0] for name in peer.MODELS}
print(json.dumps({name: sum(each.numel() for each in model.parameters()) for name, model in models.items()})))",
               PEERS});
  ASSERT_EQ(count.wait(2 * kPeersDeadline), 0) << count.errors();
  const json theirs = json::parse(count.output());
  EXPECT_EQ(theirs.size(), std::size(kModels));
  for (const char* model : kModels) EXPECT_EQ(theirs[model], parameters_of(model)) << model;
}

// -- all_reduce

TEST(CompareAllReduce, TakesTheOptionalPeersThatAreInstalled) {
  const FakePeers fake("optional-", kAvx512);
  const Words flags = {"all_reduce", "--sizes", "4", "--json"};
  const auto without = fake.compare(flags);
  ASSERT_EQ(without->wait(kPeersDeadline), 0) << without->errors();
  EXPECT_EQ(contestants_of(without->output()),
            (std::set<std::string>{"lockstep", "lockstep --plain", "openmpi", "gloo"}));
  fake.program("peers/openmpi5/bin/mpirun", R"(echo '{"bytes": 4, "p50_us": 3}')");
  fake.program("peers/openmpi5/bin/ompi_info", "echo '   MCA coll: xhc (MCA v2.1.0)'");
  fake.program("peers/all_reduce_openmpi5", "");
  fake.program("peers/oneccl/bin/mpiexec.hydra", "echo \"no fabric\" >&2; exit 1");
  fake.program("peers/all_reduce_oneccl", "");
  const auto with = fake.compare(flags);
  ASSERT_EQ(with->wait(kPeersDeadline), 0) << with->errors();
  EXPECT_EQ(contestants_of(with->output()),
            (std::set<std::string>{"lockstep", "lockstep --plain", "openmpi", "openmpi5", "gloo"}));
  EXPECT_THAT(with->errors(), HasSubstr("compare: oneccl does not work here and is left out: no fabric\n"));
  EXPECT_THAT(fake.calls("peers/openmpi5/bin/mpirun"), HasSubstr("--mca coll_xhc_priority 90"));
  EXPECT_THAT(text_of(fake.folder() / "peers/oneccl/bin/mpiexec.hydra.env"), HasSubstr("\nCCL_ALLREDUCE=direct\n"));
  fake.program("peers/openmpi5/bin/ompi_info", "echo '   MCA coll: tuned (MCA v2.1.0)'");
  fs::remove(fake.folder() / "peers/openmpi5/bin/mpirun.calls");
  const auto no_xhc = fake.compare({"all_reduce", "--sizes", "4", "--peers", "openmpi5"});
  ASSERT_EQ(no_xhc->wait(kPeersDeadline), 0) << no_xhc->errors();
  EXPECT_THAT(fake.calls("peers/openmpi5/bin/mpirun"), AllOf(HasSubstr("--mca btl self,sm"), Not(HasSubstr("xhc"))));
}

TEST(CompareAllReduce, LeavesOneCclOutIfThereAreMoreRanksThanCores) {
  const FakePeers fake("cores-", kAvx512);
  fake.program("peers/oneccl/bin/mpiexec.hydra", R"(echo '{"bytes": 4, "p50_us": 3}')");
  fake.program("peers/all_reduce_oneccl", "");
  const Words flags = {"all_reduce", "--sizes", "4", "--json", "--ranks", "100000"};
  const auto unnamed = fake.compare(flags);
  ASSERT_EQ(unnamed->wait(kPeersDeadline), 0) << unnamed->errors();
  EXPECT_THAT(unnamed->errors(), HasSubstr("oneccl is left out: its ranks wait without pause"));
  EXPECT_EQ(contestants_of(unnamed->output()).count("oneccl"), 0U);
  Words with_name = flags;
  with_name.insert(with_name.end(), {"--peers", "oneccl"});
  const auto named = fake.compare(with_name);
  ASSERT_EQ(named->wait(kPeersDeadline), 0) << named->errors();
  EXPECT_EQ(contestants_of(named->output()).count("oneccl"), 1U);
}

TEST(CompareAllReduce, RequiresThePeersThatAreNamed) {
  const FakePeers fake("named-", kAvx512);
  for (const char* peer : {"openmpi5", "oneccl"}) {
    const auto missing = fake.compare({"all_reduce", "--sizes", "4", "--peers", peer});
    EXPECT_EQ(missing->wait(kPeersDeadline), 1);
    EXPECT_THAT(missing->errors(), AllOf(HasSubstr(peer), HasSubstr("run bench/peers/setup first")));
  }
}

// -- wrong flags

TEST(Compare, RefusesWrongFlags) {
  const FakePeers fake("flags-", kAvx512);
  for (const auto& [flags, said] : std::vector<std::pair<Words, std::string>>{
           {{"train_step", "--isa", "sse"}, "invalid choice: 'sse'"},
           {{"train_step", "--variants", "fast"}, "invalid choice: 'fast'"},
           {{"train_step", "--model", "gpt3"}, "invalid choice: 'gpt3'"},
           {{"all_reduce", "--peers", "mpich"}, "invalid choice: 'mpich'"},
           {{"train_step", "--ranks", "0"}, "--rounds and --ranks must be positive"},
           {{"train_step", "--steps", "-1"}, "--steps must not be negative"},
           {{"train"}, "invalid choice: 'train'"}}) {
    const auto compare = fake.compare(flags);
    EXPECT_EQ(compare->wait(kPeersDeadline), 2) << said;
    EXPECT_THAT(compare->errors(), HasSubstr(said));
  }
}

}  // namespace
}  // namespace lockstep::testing
