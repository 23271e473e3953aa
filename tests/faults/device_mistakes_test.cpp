// Devices that are not available as requested: every rank that requests one reports the error, and no rank waits
// forever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/faults/hand_job.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A machine with two GPUs of 100 GB, simulated by a fake CUDA part.
Environment two_gpus_and(const Environment& more) {
  Environment all = {{"LOCKSTEP_CUDA_LIBRARY", FAKE_CUDA_LIBRARY}, {"FAKE_CUDA", "two"}, {"LOCKSTEP_DEVICE", "auto"}};
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}

TEST(DeviceMistakes, OfAllRanksAreErrorsOnAllOfThem) {
  struct Row {
    Environment asked;
    const char* sentence;
  };
  const Row rows[] = {
      {{{"LOCKSTEP_LOGICAL_DEVICES", "cuda:0:80G+30G"}},
       "the limits of GPU 0's 2 parts do not fit into its 100000000000 bytes of memory"},
      {{{"LOCKSTEP_LOGICAL_DEVICES", "cuda:0:40G+40G"}},
       "this is the fake cuda:"},  // they fit, so the fake device is requested
      {{{"LOCKSTEP_LOGICAL_DEVICES", "cuda:0:1G+grow"}},
       "memory 'grow' of a logical device is invalid: expected an amount"},
      {{{"LOCKSTEP_LOGICAL_DEVICES", "cuda:2:2x"}}, "there is no GPU 2: this process has GPUs 0 to 1"},
      {{{"LOCKSTEP_LOGICAL_DEVICES", "cuda:0:65x"}}, "'cuda:0:65x' is invalid: expected cpu:2x"},
      {{{"LOCKSTEP_LOGICAL_DEVICES", "cpu:2x"}, {"LOCKSTEP_DEVICE", "tpu"}}, "LOCKSTEP_DEVICE"},
  };
  for (const auto& [asked, sentence] : rows) {
    HandJob job(2, two_gpus_and(asked));
    job.start_all({"steps=1"});
    for (const int rank : {0, 1}) {
      EXPECT_NE(job[rank].wait(60s), 0) << sentence;
      EXPECT_THAT(job[rank].errors(), HasSubstr(sentence)) << "rank " << rank;
    }
  }
  HandJob job(2, two_gpus_and({{"LOCKSTEP_DEVICE", "cpu"}, {"LOCKSTEP_LOGICAL_DEVICES", "cpu:2x"}}));
  job.start_all({"steps=1"});
  for (const int rank : {0, 1}) EXPECT_EQ(job[rank].wait(60s), 0) << job[rank].errors();
}

const Environment kWrong = {{"LOCKSTEP_LOGICAL_DEVICES", "cpu:0x"}};
const char* const kSentence = "LOCKSTEP_LOGICAL_DEVICES: 'cpu:0x' is invalid: expected cpu:2x";

TEST(DeviceMistakes, OfOneRankEndTheJobUnderLockrun) {
  Child job(
      {LOCKRUN, "--no-fold", "-n", "2", "--no-bind", "sh", "-c",
       "if [ $RANK = 1 ]; then export LOCKSTEP_LOGICAL_DEVICES=cpu:0x; fi; exec " COLLECTIVE_RANK " steps=1000000000"},
      {.environment = {{"LOCKSTEP_DEVICE", "cpu"}}});
  EXPECT_EQ(job.wait(60s), 2) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr(kSentence), HasSubstr("rank 1")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(DeviceMistakes, OfOneRankByHandTheOthersNameIt) {
  HandJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "5"}, {"LOCKSTEP_DEVICE", "cpu"}});
  job.start(0, {"steps=1"});
  job.start(1, {"steps=1"}, kWrong);
  EXPECT_EQ(job[1].wait(60s), 2);
  EXPECT_THAT(job[1].errors(), HasSubstr(kSentence));
  EXPECT_EQ(job[0].wait(60s), 1);
  EXPECT_THAT(job[0].errors(), HasSubstr("rank 1 of 2 did not arrive"));
}

// The fake CUDA part names the device that it is to create, and creates none.
TEST(DeviceNames, OfDividedGpus) {
  const auto found = [](const Environment& more, const std::vector<std::string>& names) {
    std::vector<std::string> command = {DEVICE_RANK};
    command.insert(command.end(), names.begin(), names.end());
    Child program(command, {.environment = two_gpus_and(more)});
    EXPECT_EQ(program.wait(), 0) << program.errors();
    return program.output();
  };
  const std::string plain = found({}, {"cuda", "cuda:0", "/gpu:0", "cuda:1", "/device:GPU:1", "cpu:0", "cuda:2"});
  for (const char* line :
       {"cuda: this is the fake cuda:0,", "cuda:0: this is the fake cuda:0,", "/gpu:0: this is the fake cuda:0,",
        "cuda:1: this is the fake cuda:1,", "/device:GPU:1: this is the fake cuda:1,", "cpu:0 is cpu\n",
        "cuda:2: there is no device 'cuda:2': cpu, cuda:0, cuda:1; another device never takes"})
    EXPECT_THAT(plain, HasSubstr(line));
  const std::string divided =
      found({{"LOCKSTEP_LOGICAL_DEVICES", "cpu:2x,cuda:0:2x"}},
            {"cuda", "cuda:0", "/gpu:0", "gpu:1", "cuda:0/1", "cuda:1", "/GPU:2", "cpu", "gpu:3"});
  for (const char* line :
       {"cuda: this is the fake cuda:0/0,", "cuda:0: this is the fake cuda:0/0,", "/gpu:0: this is the fake cuda:0/0,",
        "gpu:1: this is the fake cuda:0/1,", "cuda:0/1: this is the fake cuda:0/1,", "cuda:1: this is the fake cuda:1,",
        "/GPU:2: this is the fake cuda:1,", "cpu is cpu:0\n",
        "gpu:3: there is no device 'gpu:3': cpu:0, cpu:1, cuda:0/0, cuda:0/1, cuda:1"})
    EXPECT_THAT(divided, HasSubstr(line));
}

}  // namespace
}  // namespace lockstep::testing
