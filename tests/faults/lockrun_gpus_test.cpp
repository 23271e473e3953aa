// lockrun and ranks on machines with, without and with broken GPUs, which a fake CUDA part simulates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/launch/topology/cores.h"
#include "src/launch/topology/machine.h"
#include "tests/faults/lockrun.h"
#include "tests/support/temporary.h"
#include "tests/support/two_nodes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kWrongUse = 2;

ChildOptions on(const std::string& machine, std::map<std::string, std::string> environment = {}) {
  environment.insert({{"LOCKSTEP_CUDA_LIBRARY", FAKE_CUDA_LIBRARY}, {"FAKE_CUDA", machine}});
  std::vector<std::string> unset;
  for (const char* name :
       {"LOCKSTEP_DEVICE", "LOCKSTEP_SHARE_GPU", "LOCKSTEP_GPU_MEMORY", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"})
    if (environment.count(name) == 0) unset.push_back(name);
  return {.environment = std::move(environment), .unset = std::move(unset)};
}

struct Ended {
  int code;
  std::string output, errors;
};

Ended run(const std::vector<std::string>& command, const ChildOptions& options) {
  Child child(command, options);
  const int code = child.wait();
  return {code, child.output(), child.errors()};
}

Ended start(const std::string& machine, int ranks, const std::vector<std::string>& flags,
            std::map<std::string, std::string> environment = {}) {
  return run(lockrun(ranks, {"env:LOCKSTEP_DEVICE+env:LOCKSTEP_SHARE_GPU+env:LOCKSTEP_GPU_MEMORY"}, flags),
             on(machine, std::move(environment)));
}

TEST(LockrunGpus, EachRankIsToldItsOwnAndTheUserSeesALineAGpu) {
  const Ended job = start("two", 2, {});
  EXPECT_EQ(job.code, 0) << job.errors;
  EXPECT_THAT(job.output, AllOf(HasSubstr("[0] LOCKSTEP_DEVICE=cuda:0\n"), HasSubstr("[1] LOCKSTEP_DEVICE=cuda:1\n")));
  EXPECT_EQ(job.errors,
            "lockrun: gpu 0: Fake H200, 100.0 GB, GPU-8c9f11: rank 0\n"
            "lockrun: gpu 1: Fake H200, 100.0 GB, GPU-8caa22: rank 1\n");
}

TEST(LockrunGpus, ByUuidInTheOrderGiven) {
  const Ended job = start("two", 2, {"--gpus", "GPU-8ca,0"});
  EXPECT_EQ(job.code, 0) << job.errors;
  EXPECT_THAT(job.output, AllOf(HasSubstr("[0] LOCKSTEP_DEVICE=cuda:1\n"), HasSubstr("[1] LOCKSTEP_DEVICE=cuda:0\n")));
}

TEST(LockrunGpus, SeveralRanksOnOne) {
  const Ended job = start("two", 3, {"--share-gpu", "2"});
  EXPECT_EQ(job.code, 0) << job.errors;
  const std::string share = " LOCKSTEP_SHARE_GPU=2\n", memory = " LOCKSTEP_GPU_MEMORY=45000000000\n";
  EXPECT_EQ(lines_of("1", job.output), "[1] LOCKSTEP_DEVICE=cuda:0\n[1]" + share + "[1]" + memory);
  EXPECT_EQ(lines_of("2", job.output), "[2] LOCKSTEP_DEVICE=cuda:1\n[2]" + share + "[2]" + memory);
  EXPECT_THAT(job.errors, HasSubstr("logical devices 2, 3 with 45.0 GB each (rank 2)\n"));
}

TEST(LockrunGpus, NoneAndTheUsersDeviceAreTakenAsSaid) {
  const Ended none = start("two", 1, {"--gpus", "none"}, {{"LOCKSTEP_DEVICE", "cuda"}});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.output, HasSubstr("LOCKSTEP_DEVICE=cpu\n"));
  EXPECT_THAT(none.errors, IsEmpty());
  const Ended first = start("two", 1, {}, {{"LOCKSTEP_DEVICE", "cuda:1"}});
  EXPECT_THAT(first.output, HasSubstr("LOCKSTEP_DEVICE=cuda:1\n"));
  EXPECT_THAT(start("crash", 1, {}, {{"LOCKSTEP_DEVICE", "cpu"}}).errors, IsEmpty()) << "nobody needs to look";
}

TEST(LockrunGpus, WithoutAnyTheRanksAreOnTheCpuAndOneLineSaysWhy) {
  for (const char* machine : {"no driver", "no gpu"}) {
    const Ended job = start(machine, 2, {});
    EXPECT_EQ(job.code, 0) << machine;
    EXPECT_THAT(job.output, HasSubstr("[1] LOCKSTEP_DEVICE=cpu\n")) << machine;
    EXPECT_THAT(job.errors, HasSubstr(std::string("lockrun: computing on the CPU: ") +
                                      (machine[3] == 'd' ? "no NVIDIA driver" : "the NVIDIA driver sees no GPU")));
    EXPECT_EQ(std::count(job.errors.begin(), job.errors.end(), '\n'), 1) << job.errors;
  }
  const Ended here = run(lockrun(1, {"env:LOCKSTEP_DEVICE"}),
                         {.environment = {{"LOCKSTEP_DEVICE", "auto"}}, .unset = {"LOCKSTEP_CUDA_LIBRARY"}});
  EXPECT_EQ(here.code, 0) << here.errors;  // whatever this machine has
}

TEST(LockrunGpus, AskedForAndNotThereIsAnErrorWithTheRemedy) {
  for (const char* flag : {"all", "0", "GPU-1"}) {
    const Ended job = start("no driver", 1, {"--gpus", flag});
    EXPECT_EQ(job.code, kWrongUse) << flag;
    EXPECT_THAT(job.errors, AllOf(HasSubstr("there is none to use: no NVIDIA driver"), HasSubstr("--gpus none")))
        << flag;
    EXPECT_THAT(job.output, IsEmpty());
  }
  const Ended seven = start("two", 1, {"--gpus", "7"});
  EXPECT_EQ(seven.code, kWrongUse);
  EXPECT_THAT(seven.errors,
              HasSubstr("--gpus 7: this machine shows 2 GPUs, counted from 0: 0 (Fake H200, GPU-8c9f11), 1 (Fake"));
  const Ended many = start("two", 3, {});
  EXPECT_EQ(many.code, kWrongUse);
  EXPECT_THAT(many.errors, AllOf(HasSubstr("3 ranks need 3 GPUs, and there are 2"), HasSubstr("--share-gpu 2"),
                                 HasSubstr("--gpus none")));
}

TEST(LockrunGpus, WhatIsBrokenIsAnErrorEvenWhenNobodyAsked) {
  const std::map<std::string, std::string> machines = {
      {"old driver", "is for CUDA 11.4, this build needs 13.0: update the driver"},
      {"crash", "the search for GPUs was ended by signal 9"},
      {"other version", "belongs to another version of Lockstep: install program and library"}};
  for (const auto& [machine, sentence] : machines) {
    const Ended job = start(machine, 1, {});
    EXPECT_EQ(job.code, 1) << machine;
    EXPECT_THAT(job.errors, AllOf(HasSubstr(sentence), HasSubstr("--gpus none"))) << machine;
    EXPECT_EQ(job.errors.find("--gpus none"), job.errors.rfind("--gpus none")) << "twice: " << job.errors;
    EXPECT_THAT(job.output, IsEmpty()) << machine;
    EXPECT_EQ(start(machine, 1, {"--gpus", "none"}).code, 0) << machine;
  }
}

TEST(LockrunGpus, ACudaPartThatCannotBeLoadedIsASentence) {
  const std::map<std::string, std::string> libraries = {
      {NEEDS_CUDNN_LIBRARY, "cuDNN (libcudnn.so.99) was not found: install it"},
      {NO_ENTRY_LIBRARY, "is not a CUDA part of Lockstep"},
      {"/nowhere/x.so", "the file /nowhere/x.so does not exist"},
      {LOCKRUN, "the CUDA part cannot be loaded"}};
  for (const auto& [library, sentence] : libraries) {
    const Ended job = start("two", 1, {}, {{"LOCKSTEP_CUDA_LIBRARY", library}});
    EXPECT_EQ(job.code, 1) << library;
    EXPECT_THAT(job.errors, AllOf(HasSubstr(sentence), HasSubstr("--gpus none"))) << library;
  }
}

TEST(LockrunGpus, OnTheCpuTheSameFlagSplitsTheCores) {
  const Ended job = start("no gpu", 2, {"--share-gpu", "2"});
  EXPECT_EQ(job.code, 0) << job.errors;
  EXPECT_THAT(job.errors, AllOf(HasSubstr("lockrun: computing on the CPU"), HasSubstr("lockrun: cpu: "),
                                HasSubstr("logical devices 0, 1 ")));
}

// The fake GPU 0 has the place of the machine's first one: 0000:17:00.0, on node 0.
TEST(LockrunGpus, ARankRunsAndRemembersNearItsGpu) {
  if (const auto here = launch::read_machine(); !here->unknown_because().empty())
    GTEST_SKIP() << here->unknown_because();
  if (!launch::memory_choice_obstacle().empty()) GTEST_SKIP() << launch::memory_choice_obstacle();
  const std::string file = temporary("machine.xml");
  std::ofstream(file) << two_nodes_xml();
  const auto policy = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {LOCKRUN, "-n", "1", "--no-prefix", "--gpus", "0"};
    command.insert(command.end(), flags.begin(), flags.end());
    for (const char* word : {"grep", "-c", "prefer:0", "/proc/self/numa_maps"}) command.push_back(word);
    return run(command, on("two", {{"HWLOC_XMLFILE", file}, {"HWLOC_LIBXML", "0"}}));
  };
  const Ended placed = policy({});
  EXPECT_EQ(placed.code, 0) << placed.output << placed.errors;
  EXPECT_GT(std::stoi(placed.output), 0);
  EXPECT_EQ(policy({"--no-bind"}).output, "0\n");
  std::filesystem::remove(file);
}

std::vector<std::string> headings(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != ' ' && line[0] != '$') found.push_back(line);
  return found;
}

TEST(LockrunTopology, HasTheSectionsThatItsPageShows) {
  std::ifstream file(LOCKSTEP_LAUNCHING_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}}, command = "$ lockrun topology\n";
  const std::size_t begin = page.find(command);
  ASSERT_NE(begin, std::string::npos);
  const std::string shown = page.substr(begin, page.find("```", begin) - begin);
  const Ended here = run({LOCKRUN, "topology"}, on("two"));
  EXPECT_EQ(here.code, 0) << here.errors;
  EXPECT_EQ(headings(here.output), headings(shown));
  EXPECT_THAT(headings(shown), ::testing::SizeIs(4));
}

TEST(LockrunTopology, GpusOrWhyThereAreNone) {
  const Ended two = run({LOCKRUN, "topology"}, on("two"));
  EXPECT_THAT(two.output,
              AllOf(HasSubstr("  1: Fake H200, 100.0 GB, compute capability 9.0, PCI 0000:65:00.0, NUMA node "),
                    HasSubstr("  0 - 1: "), HasSubstr("NVLink: not known"), HasSubstr("  lo: "),
                    HasSubstr("  between machines: ")));
  EXPECT_THAT(run({LOCKRUN, "topology"}, on("old driver")).output,
              HasSubstr("GPUs\n  none: the NVIDIA driver is for CUDA 11.4"));
  EXPECT_THAT(run({LOCKRUN, "topology", "--json"}, on("no gpu")).output,
              HasSubstr("\"why_no_gpus\": \"the NVIDIA driver sees no GPU"));
  EXPECT_THAT(run({LOCKRUN, "topology"}, on("two", {{"LOCKSTEP_INTERFACE", "lo"}})).output,
              HasSubstr("between machines: lo (LOCKSTEP_INTERFACE=lo)"));
  const Ended wrong = run({LOCKRUN, "topology", "--xml"}, on("two"));
  EXPECT_EQ(wrong.code, kWrongUse);
  EXPECT_THAT(wrong.errors, HasSubstr("unexpected argument --xml"));
  EXPECT_THAT(run({LOCKRUN, "topology", "--help"}, on("crash")).output, HasSubstr("usage: lockrun topology"));
}

// A rank without lockrun: by hand, mpirun, srun.
Ended rank(const std::string& machine, std::map<std::string, std::string> environment) {
  return run({DEVICE_RANK}, on(machine, std::move(environment)));
}

TEST(RankDevice, ByLocalRank) {
  EXPECT_THAT(rank("two", {{"LOCAL_RANK", "1"}}).errors, HasSubstr("the fake cuda:1, kind 0"));
  EXPECT_THAT(rank("two", {{"LOCAL_RANK", "3"}, {"LOCKSTEP_SHARE_GPU", "2"}}).errors,
              HasSubstr("the fake cuda:1, kind 1 of memory policy, 45000000000"));
  EXPECT_THAT(rank("two", {{"LOCAL_RANK", "2"}}).errors, HasSubstr("local rank 2 has no GPU: this process sees 2"));
  EXPECT_THAT(rank("two", {{"LOCAL_RANK", "1"}, {"LOCKSTEP_DEVICE", "cuda:0"}}).errors, HasSubstr("the fake cuda:0"));
}

TEST(RankDevice, NeverSilentlyOnTheCpu) {
  const Ended none = rank("no driver", {});
  EXPECT_EQ(none.output, "on cpu\n");
  EXPECT_EQ(none.errors,
            "lockstep info: computing on the CPU: no NVIDIA driver is loaded: install one for CUDA 13.0 or newer\n");
  EXPECT_THAT(rank("no driver", {{"LOCAL_RANK", "1"}}).errors, IsEmpty()) << "one rank a machine is enough";
  const Ended asked = rank("no driver", {{"LOCKSTEP_DEVICE", "cuda"}});
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.errors,
              AllOf(HasSubstr("LOCKSTEP_DEVICE requests a GPU: no NVIDIA driver"), HasSubstr("LOCKSTEP_DEVICE=cpu")));
  for (const char* machine : {"old driver", "other version", "no code"}) {
    const Ended broken = rank(machine, {});
    EXPECT_EQ(broken.code, 1) << machine;
    EXPECT_THAT(broken.output, Not(HasSubstr("cpu"))) << machine;
  }
  EXPECT_THAT(rank("no code", {}).errors, HasSubstr("configure with -Dgpu_architectures=75"));
}

// A program in its own folder, with or without a CUDA part next to it, on a machine with a driver: any library of its
// name.
class Installed : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    std::filesystem::copy(DEVICE_RANK, folder_ / "rank");
    std::filesystem::copy(FAKE_CUDA_LIBRARY, folder_ / "libcuda.so.1");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put_beside_it(const char* library) { std::filesystem::copy(library, folder_ / "liblockstep_cuda.so"); }
  Ended start(std::map<std::string, std::string> environment) {
    ChildOptions options = on("two", std::move(environment));
    options.environment.erase("LOCKSTEP_CUDA_LIBRARY");
    options.unset.push_back("LOCKSTEP_CUDA_LIBRARY");
    return run({folder_ / "rank"}, options);
  }
  Ended start_with_driver(std::map<std::string, std::string> environment = {}) {
    environment["LD_LIBRARY_PATH"] = folder_;
    return start(std::move(environment));
  }
  const std::filesystem::path folder_ = temporary("installed");
};

TEST_F(Installed, WithoutItsCudaPartItComputesOnTheCpuAndSaysSo) {
  const Ended unasked = start_with_driver();
  EXPECT_EQ(unasked.output, "on cpu\n");
  EXPECT_THAT(
      unasked.errors,
      HasSubstr("computing on the CPU: this installation has no CUDA part: liblockstep_cuda.so is neither next to"));
  const Ended asked = start_with_driver({{"LOCKSTEP_DEVICE", "cuda"}});
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.errors, AllOf(HasSubstr("build with -Dcuda=enabled"), HasSubstr("LOCKSTEP_CUDA_LIBRARY")));
}

TEST_F(Installed, ItsCudaPartIsFoundBesideItWhereThereIsADriver) {
  put_beside_it(FAKE_CUDA_LIBRARY);
  EXPECT_THAT(start_with_driver().errors, HasSubstr("this is the fake cuda:0"));
}

TEST_F(Installed, ABrokenCudaPartIsAnErrorWhereThereIsADriver) {
  put_beside_it(NEEDS_CUDNN_LIBRARY);
  const Ended broken = start_with_driver();
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.errors, HasSubstr("cuDNN (libcudnn.so.99) was not found"));
  EXPECT_THAT(broken.output, IsEmpty());
}

TEST(RankDevice, WrongVariablesAreNamed) {
  const Ended ninth = rank("two", {{"LOCKSTEP_DEVICE", "cuda:9"}});
  EXPECT_EQ(ninth.code, kWrongUse);
  EXPECT_THAT(ninth.errors, HasSubstr("LOCKSTEP_DEVICE=cuda:9: this process sees 2 GPUs, counted from 0"));
  const Ended memory = rank("two", {{"LOCKSTEP_GPU_MEMORY", "lots"}});
  EXPECT_EQ(memory.code, kWrongUse);
  EXPECT_THAT(memory.errors, HasSubstr("LOCKSTEP_GPU_MEMORY: 'lots' is not an amount of memory"));
  EXPECT_THAT(rank("two", {{"LOCKSTEP_DEVICE", "gpu"}}).errors,
              HasSubstr("is invalid: expected auto, cpu, cuda or cuda:N"));
  EXPECT_THAT(rank("two", {{"LOCKSTEP_SHARE_GPU", "0"}}).errors, HasSubstr("LOCKSTEP_SHARE_GPU"));
}

}  // namespace
}  // namespace lockstep::testing
