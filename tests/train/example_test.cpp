// examples/cifar10 as a user runs it, with two ranks under lockrun or mpirun: resuming, and common mistakes.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/data/cifar10.h"
#include "tests/support/sanitized.h"

namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code;
  std::string output;  // stdout and stderr
};

class Example : public ::testing::Test {
 protected:
  Example() {
    std::string pattern = ::testing::TempDir() + "lockstep-example-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    lockstep::data::write_generated_cifar10(data(), {.train_images = 80, .test_images = 20});
  }
  ~Example() override { fs::remove_all(folder_); }

  std::string data() const { return folder_ + "/data"; }
  std::string in_folder(const std::string& name) const { return folder_ + "/" + name; }

  // A small set and a small batch. `flags` come last and take precedence.
  Outcome train(const std::string& flags, int ranks = 2, const std::string& launcher = LOCKSTEP_LOCKRUN) const {
    return run(fmt::format("timeout 200 {} -n {} {} {}", launcher, ranks, LOCKSTEP_CIFAR10, small(flags)));
  }
  std::string small(const std::string& flags) const {
    return fmt::format("--data {} --batch 8 --epochs 2 --log-every 1 {}", data(), flags);
  }
  static Outcome run(std::string command) {
    command = "{ " + command + "; } 2>&1 </dev/null";
    std::FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    for (char buffer[4096]; std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe);) output.append(buffer, got);
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
  }
  nlohmann::json figures(const std::string& name) const {
    return nlohmann::json::parse(std::ifstream(in_folder(name)));
  }

  std::string folder_;
};

TEST_F(Example, AResumedRunIsTheRunNeverStoppedBitForBit) {
  const std::string json = " --json-file " + in_folder("");
  const Outcome whole = train("--steps 14" + json + "whole.json");
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  // The run is stopped within the first epoch of ten steps, and again in the second.
  const std::string checkpoint = " --checkpoint " + in_folder("checkpoint") + " --save-every 3 --auto-resume";
  ASSERT_EQ(train("--steps 7" + checkpoint + json + "first.json").exit_code, 0);
  const Outcome second = train("--steps 13" + checkpoint + json + "second.json");
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_NE(second.output.find("resumed at step 6 from"), std::string::npos) << second.output;
  const Outcome third = train("--steps 14" + checkpoint + json + "third.json");
  ASSERT_EQ(third.exit_code, 0) << third.output;
  EXPECT_NE(third.output.find("resumed at step 12 from"), std::string::npos) << third.output;
  const auto losses = figures("whole.json")["losses"].get<std::vector<double>>();
  ASSERT_EQ(losses.size(), 14u);
  EXPECT_EQ(figures("second.json")["losses"].get<std::vector<double>>(),
            std::vector<double>(losses.begin() + 6, losses.begin() + 13));
  EXPECT_EQ(figures("third.json")["losses"].get<std::vector<double>>(),
            std::vector<double>(losses.begin() + 12, losses.end()));
  EXPECT_EQ(figures("third.json")["weights_sha256"], figures("whole.json")["weights_sha256"]);
}

TEST_F(Example, SaysWhatItDoesAndWritesItsFigures) {
  const Outcome run =
      train("--epochs 1 --summary --checkpoint " + in_folder("checkpoint") + " --json-file " + in_folder("run.json"));
  ASSERT_EQ(run.exit_code, 0) << run.output;
  for (const char* expected :
       {"[0] total    Sequential", "[0] data: CIFAR-10 in ", "[0] ranks: 2, 4 images a step each", "[0] step 10 loss ",
        "[0] accuracy 0.", "[0] checkpoint in "})
    EXPECT_NE(run.output.find(expected), std::string::npos) << expected << "\n" << run.output;
  EXPECT_EQ(run.output.find("[1]"), std::string::npos) << "only rank 0 prints";
  const auto accuracy = figures("run.json")["accuracy"].get<double>();
  EXPECT_TRUE(accuracy >= 0 && accuracy <= 1);
  EXPECT_EQ(figures("run.json")["ranks"], 2);
}

// The output is not checked, because mpirun sometimes drops the ranks' last output.
TEST_F(Example, UnderMpirunItIsTheSameRunBitForBit) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  const std::string steps = "--steps 5 --json-file ";
  // One thread per rank in both, because with more, oneDNN may add in another order.
  const Outcome ours =
      train(steps + in_folder("lockrun.json"), 2, std::string("env OMP_NUM_THREADS=1 ") + LOCKSTEP_LOCKRUN);
  ASSERT_EQ(ours.exit_code, 0) << ours.output;
  const Outcome theirs =
      train(steps + in_folder("mpirun.json"), 2,
            "env OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe");
  ASSERT_EQ(theirs.exit_code, 0) << theirs.output;
  EXPECT_EQ(figures("mpirun.json")["ranks"], 2);
  EXPECT_EQ(figures("mpirun.json")["losses"], figures("lockrun.json")["losses"]);
  EXPECT_EQ(figures("mpirun.json")["weights_sha256"], figures("lockrun.json")["weights_sha256"]);
}

// The test sets its own folder for temporary files, and the run must leave nothing in it, whenever it ends.
TEST_F(Example, WithoutDataItGeneratesSomeAndLeavesNothing) {
  fs::create_directory(in_folder("tmp"));
  const std::string in_tmp = "env TMPDIR=" + in_folder("tmp") + " ";
  const Outcome done = train("--generated --steps 1", 2, in_tmp + LOCKSTEP_LOCKRUN);
  ASSERT_EQ(done.exit_code, 0) << done.output;
  EXPECT_NE(done.output.find("data: generated images"), std::string::npos) << done.output;
  EXPECT_EQ(done.output.find("CIFAR-10 in"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(in_folder("tmp")));
  // Ended by SIGTERM, some milliseconds later each time.
  for (int milliseconds = 100; milliseconds <= 1000; milliseconds += 150) {
    const Outcome ended =
        run(fmt::format("{}timeout -s TERM {}.{:03} {} {}", in_tmp, milliseconds / 1000, milliseconds % 1000,
                        LOCKSTEP_CIFAR10, small("--generated --log-every 1000")));
    EXPECT_TRUE(fs::is_empty(in_folder("tmp"))) << "after " << milliseconds << " ms: " << ended.output;
    fs::remove_all(in_folder("tmp"));
    fs::create_directory(in_folder("tmp"));
  }
}

TEST_F(Example, MistakesAreNamed) {
  const auto expect_refusal = [&](const std::string& flags, int exit_code, const std::string& words, int ranks = 2) {
    const Outcome run = train(flags, ranks);
    EXPECT_EQ(run.exit_code, exit_code) << flags << "\n" << run.output;
    EXPECT_NE(run.output.find(words), std::string::npos) << flags << "\n" << run.output;
  };
  expect_refusal("--no-such-flag", 2, "no-such-flag");
  expect_refusal("stray", 2, "unknown argument 'stray'");
  expect_refusal("--batch 9", 2, "--batch 9 cannot be divided among 2 ranks");
  expect_refusal("--batch 88", 2, "larger than the set of 80 samples");
  expect_refusal("--recipe slow", 2, "--recipe slow: expected one of 'quick' (");
  expect_refusal("--resume", 2, "need --checkpoint");
  expect_refusal("--resume --auto-resume --checkpoint " + in_folder("a"), 2, "exclude each other");
  expect_refusal("--data " + in_folder("nowhere"), 1, "nowhere: holds no CIFAR-10");
  expect_refusal("--json-file " + in_folder("nowhere/run.json"), 1, "nowhere/run.json: cannot be written");
  fs::resize_file(in_folder("data/test_batch.bin"), 100);
  expect_refusal("", 1, "test_batch.bin: 100 bytes are not a multiple");
}

TEST_F(Example, ACheckpointFolderThatCannotBeWrittenIsToldBeforeTheTraining) {
  std::ofstream(in_folder("file")) << "in the way";
  const Outcome refused = train("--checkpoint " + in_folder("file/checkpoint"));
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  EXPECT_NE(refused.output.find(in_folder("file/checkpoint") + ": the checkpoint cannot be written"), std::string::npos)
      << refused.output;
  EXPECT_EQ(refused.output.find("step 1 loss"), std::string::npos) << "it trained first\n" << refused.output;
}

TEST_F(Example, FiguresAreWrittenAsAWholeOrNotAtAll) {
  const std::string path = in_folder("run.json");
  std::ofstream(path) << "before";
  // No file may grow, as on a full disk. Uses one rank, which needs no shared memory.
  const std::string full = "trap '' XFSZ; ulimit -f 0; timeout 200 ";
  const Outcome failed = run(full + LOCKSTEP_CIFAR10 + " " + small("--steps 1 --json-file " + path));
  EXPECT_EQ(failed.exit_code, 1) << failed.output;
  EXPECT_NE(failed.output.find("--json-file " + path + ": cannot be written: File too large"), std::string::npos)
      << failed.output;
  std::string text;
  std::getline(std::ifstream(path), text);
  EXPECT_EQ(text, "before");
  ASSERT_EQ(train("--steps 1 --json-file " + path).exit_code, 0);
  EXPECT_EQ(figures("run.json")["steps"], 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2) << "only the data and the figures are left";
  const Outcome shown = train("--steps 1 --json-file /dev/full");
  EXPECT_EQ(shown.exit_code, 1) << "it is not a regular file and cannot be replaced";
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(Example, OutputThatCannotBeWrittenIsAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  const Outcome alone = run(std::string("timeout 200 ") + LOCKSTEP_CIFAR10 + " " + small("--steps 1 2>&1 >/dev/full"));
  EXPECT_EQ(alone.exit_code, 1) << alone.output;
  EXPECT_NE(alone.output.find("cifar10: error: the progress cannot be written: No space left on device"),
            std::string::npos)
      << alone.output;
  // --help bypasses the progress output.
  const Outcome help = run(std::string(LOCKSTEP_CIFAR10) + " --help 2>&1 >/dev/full");
  EXPECT_EQ(help.exit_code, 1);
  EXPECT_NE(help.output.find("the standard output could not be written"), std::string::npos) << help.output;
  EXPECT_NE(train("--steps 1 2>&1 >/dev/full").exit_code, 0) << "under lockrun";
}

TEST_F(Example, LearnsTheGeneratedSet) {
  if (lockstep::testing::kSanitized) GTEST_SKIP() << "instrumented code is too slow to train a network";
#if !defined(LOCKSTEP_WITH_ONEDNN)
  GTEST_SKIP() << "the reference kernels are too slow to train a network";
#endif
  const Outcome run = train("--generated --batch 128 --log-every 1000 --json-file " + in_folder("run.json"));
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_GT(figures("run.json")["accuracy"].get<double>(), 0.9)
      << "a linear model stays below 0.6 (GeneratedSet); " << run.output;
}

TEST_F(Example, ARunGoesOnOnlyAsItBegan) {
  const std::string checkpoint = " --auto-resume --checkpoint " + in_folder("checkpoint");
  ASSERT_EQ(train("--epochs 1" + checkpoint, 1).exit_code, 0);
  const Outcome seed = train("--seed 7" + checkpoint, 1), batch = train("--batch 4" + checkpoint, 1);
  EXPECT_EQ(seed.exit_code, 2) << seed.output;
  EXPECT_NE(seed.output.find("was written with --seed 1"), std::string::npos) << seed.output;
  EXPECT_EQ(batch.exit_code, 2) << batch.output;
  EXPECT_NE(batch.output.find("was written with another batch"), std::string::npos) << batch.output;
  const Outcome done = train("--epochs 1" + checkpoint, 1);
  EXPECT_NE(done.output.find("checkpoint in " + in_folder("checkpoint/step-00000010")), std::string::npos)
      << done.output;
}

TEST_F(Example, ResumingFromNothingIsAnErrorAndMakesNoFolder) {
  const Outcome mistyped = train("--resume --checkpoint " + in_folder("chekpoint"));
  EXPECT_EQ(mistyped.exit_code, 1) << mistyped.output;
  EXPECT_NE(mistyped.output.find(in_folder("chekpoint") + ": there is no such folder"), std::string::npos)
      << mistyped.output;
  EXPECT_FALSE(fs::exists(in_folder("chekpoint")));
  const Outcome first = train("--steps 1 --auto-resume --checkpoint " + in_folder("checkpoint"));
  EXPECT_EQ(first.exit_code, 0) << first.output;
  EXPECT_NE(first.output.find("no checkpoint in " + in_folder("checkpoint") + " yet: starting a new run"),
            std::string::npos)
      << first.output;
}

TEST_F(Example, AnOlderCheckpointIsGoneOnFromByItsFolder) {
  ASSERT_EQ(train("--steps 4 --save-every 2 --checkpoint " + in_folder("checkpoint")).exit_code, 0);
  const std::string older = in_folder("checkpoint/step-00000002");
  const Outcome run = train("--steps 6 --save-every 3 --resume=" + older + " --checkpoint " + in_folder("branch"));
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_NE(run.output.find("resumed at step 2 from " + older), std::string::npos) << run.output;
  EXPECT_TRUE(fs::exists(in_folder("branch/step-00000006/manifest.json")));
}

TEST_F(Example, ALossThatIsNotFiniteStopsAndKeepsTheLastCheckpoint) {
  const std::string checkpoint = " --checkpoint " + in_folder("checkpoint");
  ASSERT_EQ(train("--steps 2 --save-every 2" + checkpoint).exit_code, 0);
  const Outcome run = train("--lr 1e30 --resume" + checkpoint);
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_NE(run.output.find("Model diverged with loss = "), std::string::npos) << run.output;
  EXPECT_TRUE(fs::exists(in_folder("checkpoint/step-00000002/manifest.json")));
  EXPECT_EQ(train("--steps 3 --resume" + checkpoint).exit_code, 0);
}

}  // namespace
