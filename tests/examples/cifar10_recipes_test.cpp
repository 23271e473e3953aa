// The recipes of examples/cifar10, and cifar10_eval during a training, on a small set.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "examples/cifar10/classic_net.h"
#include "tests/faults/child.h"
#include "tests/faults/hand_job.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/event_records.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kDeadline = std::chrono::seconds(200);

class Cifar10Recipes : public ::testing::Test {
 protected:
  void SetUp() override {
    data::write_generated_cifar10((folder_ / "data").string(), {.train_images = 24, .test_images = 10});
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }

  // Four images per step on each device: with two devices an epoch has three steps.
  std::vector<std::string> classic(const std::string& train_dir, const std::vector<std::string>& more,
                                   int ranks = 1) const {
    std::vector<std::string> words = {LOCKRUN, "-n", std::to_string(ranks), EXAMPLES_FOLDER "/cifar10"};
    if (ranks == 0) words.erase(words.begin(), words.begin() + 3);
    words.insert(words.end(), {"--recipe", "classic", "--data", in_folder("data"), "--batch-size", "4", "--train-dir",
                               in_folder(train_dir)});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // One thread per rank, because with more, oneDNN may add in another order.
  std::string run(const std::vector<std::string>& words, int exit_code = 0) const {
    Child child(words,
                {.environment = {{"OMP_NUM_THREADS", "1"}}, .unset = {"LOCKSTEP_DATA", "LOCKSTEP_LOGICAL_DEVICES"}});
    EXPECT_EQ(child.wait(kDeadline), exit_code) << child.output() << child.errors();
    return exit_code == 0 ? child.output() : child.errors();
  }
  std::vector<double> losses(const std::string& name) const {
    return nlohmann::json::parse(std::ifstream(in_folder(name)))["losses"];
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("cifar10-recipes-" + std::to_string(::getpid()));
};

TEST_F(Cifar10Recipes, QuickAndModernTrainAFewSteps) {
  for (const std::string recipe : {"quick", "modern"})
    for (const std::string ranks : {"1", "2"})
      EXPECT_THAT(run({LOCKRUN, "-n", ranks, EXAMPLES_FOLDER "/cifar10", "--recipe", recipe, "--data",
                       in_folder("data"), "--batch", "4", "--steps", "2", "--log-every", "1"}),
                  AllOf(HasSubstr("[0] step 2 loss "), HasSubstr("[0] accuracy 0."), Not(HasSubstr("[1]"))));
}

TEST_F(Cifar10Recipes, ClassicPrintsTheTutorialsLinesAndWritesItsSummaries) {
  const std::regex line(
      R"(\[0\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step (\d+), loss = (\d+\.\d\d) \((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\))");
  for (const int ranks : {1, 2}) {
    const std::string dir = "train" + std::to_string(ranks);
    const std::string output =
        run(classic(dir, {"--max-steps", "4", "--lr", "0", "--log-every", "2", "--summary-every", "3"}, ranks));
    std::vector<std::string> steps;
    for (std::sregex_iterator found(output.begin(), output.end(), line), end; found != end; ++found) {
      steps.push_back((*found)[1]);
      // Cross-entropy is about ln 10 and weight losses about 2.2 and 0.2: those of the initial weights, which --lr 0
      // keeps.
      EXPECT_NEAR(std::stod((*found)[2]), 4.67, 0.2);
      // examples/sec is over all devices; sec/batch is the step's time divided by their number. The last printed digit
      // is 0.001 s.
      const double rate = std::stod((*found)[3]), seconds = std::stod((*found)[4]);
      EXPECT_NEAR(rate * seconds, 4, rate * 0.001 + 0.1 * seconds + 0.01);
    }
    EXPECT_THAT(steps, ::testing::ElementsAre("0", "2")) << output;
    EXPECT_TRUE(fs::exists(folder_ / dir / "step-00000001")) << "the checkpoint of step 0";
    EXPECT_THAT(output, AllOf(HasSubstr("checkpoint in " + in_folder(dir + "/step-00000004")), Not(HasSubstr("[1]"))));
    std::string events;
    for (const auto& entry : fs::directory_iterator(folder_ / dir))
      if (entry.path().filename().string().rfind("events.out.tfevents.", 0) == 0) events += bytes_of_file(entry.path());
    for (const char* tag : {"cross_entropy (raw)", "local3/weight_loss (raw)", "local4/weight_loss (raw)",
                            "total_loss (raw)", "total_loss", "learning_rate", "conv1/weight/gradients",
                            "softmax_linear/bias", "conv2/activations", "local4/sparsity", "images", "MaxPool2d"})
      EXPECT_THAT(events, HasSubstr(tag));
  }
}

TEST_F(Cifar10Recipes, ClassicLogsWhereVariablesAndOperatorsAre) {
  Child child(classic("train", {"--max-steps", "1", "--summary-every", "0", "--log-device-placement"}));
  EXPECT_EQ(child.wait(kDeadline), 0) << child.errors();
  for (const char* line : {"local3.weight: cpu (384x2304 float32)\n", "operator conv2d: cpu\n", "operator lrn: cpu\n"})
    EXPECT_THAT(child.errors(), HasSubstr(line));
}

TEST_F(Cifar10Recipes, ClassicResumedIsTheRunNeverStopped) {
  const std::vector<std::string> five = {"--max-steps", "5",           "--summary-every",
                                         "0",           "--json-file", in_folder("whole.json")};
  run(classic("whole", five, 2));
  run(classic("parts", {"--max-steps", "2", "--summary-every", "0"}, 2));
  const std::string output = run(classic(
      "parts", {"--max-steps", "5", "--summary-every", "0", "--resume", "--json-file", in_folder("rest.json")}, 2));
  EXPECT_THAT(output, HasSubstr("resumed at step 2 from " + in_folder("parts/step-00000002")));
  const std::vector<double> whole = losses("whole.json");
  ASSERT_EQ(whole.size(), 5u);
  EXPECT_EQ(losses("rest.json"), std::vector<double>(whole.begin() + 2, whole.end()));
  for (const std::string file : {"model.safetensors", "averages.safetensors"})
    EXPECT_EQ(bytes_of_file(folder_ / "parts/step-00000005" / file),
              bytes_of_file(folder_ / "whole/step-00000005" / file))
        << file;
  EXPECT_NE(bytes_of_file(folder_ / "whole/step-00000005/model.safetensors"),
            bytes_of_file(folder_ / "parts/step-00000002/model.safetensors"));
  EXPECT_THAT(run(classic("parts", {"--max-steps", "6", "--resume"}, 1), 2),
              HasSubstr("use the --batch-size, --seed, data set and number"));
}

TEST_F(Cifar10Recipes, ClassicByAnyStrategyHasTheSameLosses) {
  std::map<std::string, std::vector<double>> all;
  for (const std::string& strategy : lockstep::testing::strategies_of_one_process()) {
    const std::string json = in_folder(strategy + ".json");
    const std::vector<std::string> flags = {"--max-steps", "3",          "--summary-every", "3",           "--num-gpus",
                                            "2",           "--strategy", strategy,          "--json-file", json};
    EXPECT_THAT(run(classic(strategy, flags, 0)),
                HasSubstr("strategy " + strategy + ", 2 devices, 4 images a step each"));
    all[strategy] = losses(strategy + ".json");
    ASSERT_EQ(all[strategy].size(), 3u);
  }
  EXPECT_EQ(all["towers"], all["mirrored"]) << "they add in the same order";
  for (const auto& [strategy, losses] : all)
    for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(losses[step], all["towers"][step], 1e-3) << strategy;
}

// The tutorial's command: names with underscores, one process that starts the devices, five checkpoints, and the rate's
// steps by the tutorial's formula, int(24 / 5 / 2 x 350).
TEST_F(Cifar10Recipes, ClassicIsStartedAsTheTutorialIs) {
  std::vector<std::string> words = classic(
      "train", {"--max_steps=8", "--num_gpus", "2", "--save_every=1", "--summary-every", "0", "--input_threads=3"}, 0);
  *std::find(words.begin(), words.end(), "4") = "5";
  const std::string output = run(words);
  EXPECT_THAT(output, AllOf(HasSubstr("strategy ddp, 2 devices, 5 images a step each; the rate falls every 840 steps"),
                            HasSubstr(": step 0, loss = ")));
  std::vector<std::string> checkpoints;
  for (const auto& entry : fs::directory_iterator(folder_ / "train"))
    if (entry.is_directory()) checkpoints.push_back(entry.path().filename().string());
  EXPECT_THAT(checkpoints, ::testing::UnorderedElementsAre("step-00000004", "step-00000005", "step-00000006",
                                                           "step-00000007", "step-00000008"));
  EXPECT_THAT(run({EXAMPLES_FOLDER "/cifar10_eval", "--data", in_folder("data"), "--train_dir", in_folder("train"),
                   "--run_once"}),
              HasSubstr("(step 8, 10 images)"));
}

TEST_F(Cifar10Recipes, ClassicRefusesAFolderThatIsNotEmpty) {
  const std::vector<std::string> step = {"--max-steps", "1", "--summary-every", "1"};
  fs::create_directories(folder_ / "train");
  std::ofstream(folder_ / "train/notes.txt") << "mine";
  EXPECT_THAT(run(classic("train", step), 2),
              AllOf(HasSubstr("--train-dir " + in_folder("train") + ": it is not empty"), HasSubstr("--resume"),
                    HasSubstr("--overwrite")));
  run(classic("train", {"--max-steps", "2", "--overwrite"}));
  EXPECT_TRUE(fs::exists(folder_ / "train/step-00000002"));
  run(classic("train", {"--max-steps", "1", "--overwrite"}));
  EXPECT_FALSE(fs::exists(folder_ / "train/step-00000002"));
  EXPECT_TRUE(fs::exists(folder_ / "train/step-00000001"));
  EXPECT_EQ(bytes_of_file(folder_ / "train/notes.txt"), "mine");
}

// Without lockrun, which would end the second rank when the first one fails.
TEST_F(Cifar10Recipes, ClassicRefusesAFolderOnAllRanks) {
  std::ofstream(folder_ / "file") << "not a folder";
  fs::create_directories(folder_ / "full");
  std::ofstream(folder_ / "full/notes.txt") << "mine";
  const std::map<std::string, std::string> sentences = {{"full", ": it is not empty: --resume"},
                                                        {"file/below", in_folder("file/below")}};
  for (const auto& [name, sentence] : sentences) {
    HandJob job(2, {{"OMP_NUM_THREADS", "1"}});
    for (int rank = 0; rank < 2; ++rank) job.start_command(rank, classic(name, {"--max-steps", "1"}, 0));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_NE(job[rank].wait(kDeadline), 0) << name << ", rank " << rank;
      EXPECT_THAT(job[rank].errors(), HasSubstr(sentence)) << "rank " << rank;
    }
  }
}

TEST_F(Cifar10Recipes, ClassicStopsWhereALossIsNotFinite) {
  const std::string errors = run(classic("train", {"--max-steps", "8", "--lr", "1e30", "--summary-every", "0"}, 2), 1);
  EXPECT_TRUE(std::regex_search(errors, std::regex("step [23]: Model diverged with loss = (NaN|inf) on rank [01]")))
      << errors;
  EXPECT_TRUE(fs::exists(folder_ / "train/step-00000001"));
  EXPECT_FALSE(fs::exists(folder_ / "train/step-00000002")) << "only the checkpoint of step 0";
}

TEST_F(Cifar10Recipes, ClassicNamesMistakes) {
  EXPECT_THAT(run(classic("train", {"--epochs", "3"}), 2), HasSubstr("epochs"));
  EXPECT_THAT(run(classic("train", {"--max-steps", "0"}), 2), HasSubstr("must be positive"));
  EXPECT_THAT(run(classic("train", {"--overwrite", "--resume"}), 2), HasSubstr("exclude each other"));
  EXPECT_THAT(run(classic("train", {"--strategy", "tower"}), 2), HasSubstr("unknown strategy 'tower'"));
  EXPECT_THAT(run(classic("train1", {"--num-gpus", "3"}, 2), 2),
              HasSubstr("each rank has one device, and this job has 2 ranks"));
  EXPECT_THAT(run(classic("train2", {"--strategy", "towers"}, 2), 2), HasSubstr("start it without lockrun"));
  EXPECT_THAT(run(classic("train3", {"--batch-size", "25"}), 2), HasSubstr("needs 25 images, but the data set has 24"));
  EXPECT_THAT(run(classic("none", {"--resume"}), 1), HasSubstr("there is no checkpoint to go on from"));
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

// Saves a checkpoint whose averages put every image in class 7 and whose weights put it in class 3.
void save_disagreeing_weights(const std::string& folder) {
  ClassicNet net;
  const auto prefer = [&net](std::size_t label) {
    for (const auto& [name, tensor] : net.named_parameters())
      if (name == "softmax_linear.bias") {
        nn::init::zeros(tensor);
        tensor.data<float>()[label] = 1000;
      }
  };
  prefer(7);
  optim::ExponentialMovingAverage averages(net.named_parameters());
  prefer(3);
  train::save_checkpoint(folder, {.model = net, .ema = averages, .step = 12});
}

void set_labels(const fs::path& file, const std::vector<char>& labels) {
  std::fstream records(file, std::ios::in | std::ios::out | std::ios::binary);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    records.seekp(static_cast<std::streamoff>(3073 * i));
    records.put(labels[i]);
  }
}

TEST_F(Cifar10Recipes, EvalTakesTheMovingAverages) {
  set_labels(folder_ / "data/test_batch.bin", {7, 7, 7, 7, 7, 7, 3, 3, 0, 1});
  save_disagreeing_weights(in_folder("train"));
  const std::vector<std::string> eval = {EXAMPLES_FOLDER "/cifar10_eval", "--data", in_folder("data"), "--run-once",
                                         "--train-dir"};
  std::vector<std::string> words = eval;
  words.insert(words.end(), {in_folder("train"), "--eval-dir", in_folder("eval")});
  EXPECT_TRUE(std::regex_search(run(words), std::regex(R"(\d\.\d{6}: precision @ 1 = 0\.600 \(step 12, 10 images\))")));
  EXPECT_FALSE(fs::is_empty(folder_ / "eval"));
  words = eval;
  words.push_back(in_folder("nowhere"));
  EXPECT_THAT(run(words, 1), HasSubstr("there is no such folder"));
}

TEST_F(Cifar10Recipes, EvalFollowsATrainingThatRuns) {
  Child eval({EXAMPLES_FOLDER "/cifar10_eval", "--data", in_folder("data"), "--train-dir", in_folder("train"),
              "--eval-interval-secs", "0.02", "--until-step", "6"});
  ASSERT_TRUE(eval.wait_for_output("waiting for checkpoints in ", kDeadline)) << eval.errors();
  run(classic("train", {"--max-steps", "6", "--save-every", "1", "--summary-every", "0"}, 2));
  EXPECT_EQ(eval.wait(kDeadline), 0) << eval.errors();
  EXPECT_TRUE(
      std::regex_search(eval.output(), std::regex(R"(precision @ 1 = (0\.\d{3}|1\.000) \(step 6, 10 images\))")))
      << eval.output();
}

}  // namespace
}  // namespace lockstep::testing
