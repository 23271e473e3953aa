// The training examples as users run them, for a few steps: on real data if LOCKSTEP_DATA has some, and on small files
// in the same formats.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/data/cifar10.h"
#include "lockstep/tensor/random.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

struct Example {
  std::string name, set, file;                  // a file of its data set
  std::vector<std::string> small;               // flags for a few quick steps
  bool classifies;                              // whether its figures have an accuracy
  std::string missing = "there is no " + file;  // in the message when the file is missing
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all = {
      {"own_dataset", "reuters", "reuters_train.jsonl.gz", {"--batch", "8", "--steps", "3"}, true},
      {"fashion_mnist", "fashion-mnist", "train-images-idx3-ubyte", {"--batch", "8", "--steps", "3"}, true},
      {"reuters", "reuters", "reuters_train.jsonl.gz", {"--batch", "8", "--steps", "3"}, true},
      {"resnet",
       "cifar10",
       "data_batch_1.bin",
       {"--batch", "8", "--steps", "2"},
       true,
       "holds no CIFAR-10 (data_batch_*.bin)"},
      {"gpt", "tinyshakespeare", "input.txt", {"--batch", "4", "--steps", "2", "--sample", "8"}, false},
      {"char_gru", "tinyshakespeare", "input.txt", {"--batch", "4", "--steps", "2", "--sample", "8"}, false},
      {"unet",
       "fashion-mnist",
       "train-images-idx3-ubyte",
       {"--batch", "8", "--steps", "3", "--width", "4", "--test-scenes", "16"},
       true},
      {"airbench",
       "cifar10",
       "data_batch_1.bin",
       {"--batch", "8", "--steps", "2", "--width", "4"},
       true,
       "holds no CIFAR-10 (data_batch_*.bin)"},
  };
  return all;
}

void write_idx(const fs::path& path, std::vector<std::uint8_t> extents, Philox& random, std::uint32_t below) {
  std::ofstream file(path, std::ios::binary);
  const char magic[] = {0, 0, 8, static_cast<char>(extents.size())};
  file.write(magic, 4);
  std::size_t count = 1;
  for (const std::uint8_t extent : extents) {
    const char big_endian[] = {0, 0, 0, static_cast<char>(extent)};
    file.write(big_endian, 4);
    count *= extent;
  }
  for (std::size_t i = 0; i < count; ++i) file.put(static_cast<char>(random.below(below)));
}

void write_articles(const fs::path& path, int count, Philox& random) {
  std::ofstream file(path);
  for (int i = 0; i < count; ++i) {
    nlohmann::json tokens = {1};
    for (std::uint32_t length = 1 + random.below(300); length > 0; --length) tokens.push_back(2 + random.below(9998));
    file << nlohmann::json{{"label", random.below(52)}, {"tokens", tokens}} << "\n";
  }
}

void write_small_sets(const fs::path& folder) {
  for (const Example& example : examples()) fs::create_directories(folder / example.set);
  Philox random(1, 0);  // gives the same files every time
  for (const char* const part : {"train", "t10k"}) {
    write_idx(folder / "fashion-mnist" / (std::string(part) + "-images-idx3-ubyte"), {24, 28, 28}, random, 256);
    write_idx(folder / "fashion-mnist" / (std::string(part) + "-labels-idx1-ubyte"), {24}, random, 10);
  }
  write_articles(folder / "reuters/reuters_train.jsonl.gz", 24, random);
  write_articles(folder / "reuters/reuters_test.jsonl.gz", 10, random);
  std::ofstream words(folder / "reuters/reuters_vocab.txt"), topics(folder / "reuters/reuters_topics.txt");
  for (int word = 0; word < 10000; ++word) words << "word" << word << "\n";
  for (int topic = 0; topic < 52; ++topic) topics << "topic" << topic << "\n";
  data::write_generated_cifar10((folder / "cifar10").string(), {.train_images = 24, .test_images = 10});
  std::ofstream text(folder / "tinyshakespeare/input.txt");
  for (int i = 0; i < 4000; ++i) text.put(static_cast<char>('a' + random.below(26)));
}

std::ostream& operator<<(std::ostream& out, const Example& example) { return out << example.name; }

class SmallSets : public ::testing::Test {
 protected:
  void SetUp() override { write_small_sets(folder_ / "data"); }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("training-examples-" + std::to_string(::getpid()));
};
using TrainingExamplesOfCifar10 = SmallSets;

class TrainingExamples : public SmallSets, public ::testing::WithParamInterface<Example> {
 protected:
  std::vector<std::string> command(const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {EXAMPLES_FOLDER "/" + GetParam().name};
    words.insert(words.end(), GetParam().small.begin(), GetParam().small.end());
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  std::vector<std::string> with_data(std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--data", (folder_ / "data").string()});
    return command(flags);
  }
  void expect_refusal(const std::vector<std::string>& words, int exit_code, const std::string& message) const {
    Child example(words, {.unset = {"LOCKSTEP_DATA"}});
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), exit_code) << example.errors();
    EXPECT_THAT(example.errors(), HasSubstr(message));
    EXPECT_THAT(example.output(), Not(HasSubstr("step 1 loss"))) << "it must fail before training";
  }
  nlohmann::json figures() const { return nlohmann::json::parse(std::ifstream(folder_ / "run.json")); }
};

TEST_P(TrainingExamples, TrainAFewStepsAndWriteTheirFigures) {
  for (const std::string ranks : {"1", "2"}) {
    std::vector<std::string> words = with_data({"--log-every", "1", "--json-file", (folder_ / "run.json").string()});
    words.insert(words.begin(), {LOCKRUN, "-n", ranks});
    Child example(words);
    ASSERT_EQ(example.wait(std::chrono::seconds(60)), 0) << ranks << " ranks\n" << example.errors();
    EXPECT_THAT(example.output(),
                HasSubstr(GetParam().name == std::string("reuters") ? "[0] 2/3 - loss: " : "[0] step 2 loss "));
    EXPECT_THAT(example.output(), Not(HasSubstr("[1]"))) << "only rank 0 prints";
    EXPECT_GT(figures()["validation_loss"].get<double>(), 0);
    EXPECT_EQ(figures().contains("accuracy"), GetParam().classifies);
    if (GetParam().classifies) {
      const auto accuracy = figures()["accuracy"].get<double>();
      EXPECT_TRUE(accuracy >= 0 && accuracy <= 1) << accuracy;
    }
    fs::remove(folder_ / "run.json");
  }
}

TEST_P(TrainingExamples, FindTheirDataThroughTheEnvironment) {
  Child example(command({}), {.environment = {{"LOCKSTEP_DATA", (folder_ / "data").string()}}});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
}

// The examples whose validation takes only a second or two.
class QuickTrainingExamples : public TrainingExamples {};

TEST_P(QuickTrainingExamples, ReadTheRealData) {
  const char* const shared = std::getenv("LOCKSTEP_DATA");
  if (shared == nullptr || !fs::exists(fs::path(shared) / GetParam().set))
    GTEST_SKIP() << "LOCKSTEP_DATA names no " << GetParam().set;
  if (GetParam().name == "resnet" || GetParam().set == "tinyshakespeare")
    GTEST_SKIP() << "its validation alone takes long; the format is tested above";
  Child example(command({"--steps", "1"}));
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
}

// Some seconds of training on two ranks. The loss must fall below that of a net that ignores its input, which is ln 10
// for classes of equal share, and 1.2 for the pixels of a scene, three quarters of which are background.
struct ShortTraining {
  std::string name, set;
  std::vector<std::string> flags;
  double loss_below;
};

const std::vector<ShortTraining>& short_trainings() {
  static const std::vector<ShortTraining> all = {
      {"unet",
       "fashion-mnist",
       {"--width", "8", "--train-scenes", "1200", "--epochs", "1", "--batch", "8", "--test-scenes", "50"},
       1},
      {"airbench",
       "cifar10",
       {"--width", "8", "--train-images", "4000", "--epochs", "2", "--batch", "100", "--test-images", "1000"},
       2.1},
  };
  return all;
}

std::ostream& operator<<(std::ostream& out, const ShortTraining& training) { return out << training.name; }

class ShortTrainings : public ::testing::TestWithParam<ShortTraining> {};

TEST_P(ShortTrainings, Learn) {
  const char* const shared = std::getenv("LOCKSTEP_DATA");
  if (shared == nullptr || !fs::exists(fs::path(shared) / GetParam().set))
    GTEST_SKIP() << "LOCKSTEP_DATA names no " << GetParam().set;
  const fs::path figures = fs::path(::testing::TempDir()) / ("short-training-" + std::to_string(::getpid()) + ".json");
  std::vector<std::string> words = {LOCKRUN, "-n", "2", EXAMPLES_FOLDER "/" + GetParam().name};
  words.insert(words.end(), GetParam().flags.begin(), GetParam().flags.end());
  words.insert(words.end(), {"--json-file", figures.string()});
  Child training(words);
  ASSERT_EQ(training.wait(std::chrono::seconds(240)), 0) << training.errors();
  EXPECT_LT(nlohmann::json::parse(std::ifstream(figures))["validation_loss"].get<double>(), GetParam().loss_below)
      << training.output();
  fs::remove(figures);
}

// A run ends in the epoch that reaches the target, on all ranks.
TEST_F(TrainingExamplesOfCifar10, EndAtTheTarget) {
  data::write_generated_cifar10((folder_ / "more").string(), {.train_images = 24, .test_images = 200});
  const auto epochs_until = [&](const std::string& target) {
    Child airbench({LOCKRUN, "-n", "2", EXAMPLES_FOLDER "/airbench", "--width", "4", "--batch", "8", "--epochs", "3",
                    "--target", target, "--data", (folder_ / "more").string()});
    EXPECT_EQ(airbench.wait(std::chrono::seconds(60)), 0) << airbench.errors();
    const std::string output = airbench.output();
    const bool is_reached = output.find("reached in epoch 1, after ") != std::string::npos;
    EXPECT_NE(is_reached, output.find("target 1.0000 not reached") != std::string::npos) << output;
    int epochs = 0;
    for (std::size_t at = 0; (at = output.find("accuracy ", at)) != std::string::npos; ++at) ++epochs;
    return epochs;
  };
  EXPECT_EQ(epochs_until("0.000001"), 1) << "one of 200 images is right by chance";
  EXPECT_EQ(epochs_until("1"), 3);
}

TEST_P(TrainingExamples, NameTheScriptWhenDataIsMissing) {
  const std::string script = "scripts/fetch-data " + GetParam().set;
  expect_refusal(command({}), 1, script);
  expect_refusal(command({"--data", (folder_ / "nowhere").string()}), 1, script);
  fs::remove_all(folder_ / "data" / GetParam().set);
  expect_refusal(with_data({}), 1, GetParam().missing);
}

// Runs the same few steps in 16 bits. The loss must be close to that of float32 but not equal. Statistics of two
// batches of 8 images amplify the rounding, which differs between instruction sets: resnet is 5 % away with AMX.
class TrainingExamplesIn16Bits : public TrainingExamples {};

TEST_P(TrainingExamplesIn16Bits, ReachTheLossOfFloat32) {
  const auto loss_in = [&](const std::string& type) {
    Child example(with_data({"--dtype", type, "--json-file", (folder_ / "run.json").string()}));
    EXPECT_EQ(example.wait(std::chrono::seconds(120)), 0) << type << "\n" << example.errors();
    return figures()["validation_loss"].get<double>();
  };
  const double full = loss_in("float32");
  EXPECT_GT(full, 0);
  for (const std::string type : {"bf16", "float16"}) {
    const double half = loss_in(type);
    EXPECT_NEAR(half, full, 0.15 * full) << type;
    EXPECT_NE(half, full) << type << " was not used";
  }
}

TEST_P(TrainingExamplesIn16Bits, RefuseATypeThatLayersDoNotHave) {
  expect_refusal(with_data({"--dtype", "int8"}), 2,
                 "expected float32, bfloat16, float16, fp32, bf16 or fp16, got 'int8'");
}

// Both programs also find the folder under its archive's name.
TEST_F(TrainingExamplesOfCifar10, FindTheFolderOfItsArchive) {
  fs::rename(folder_ / "data/cifar10", folder_ / "data/cifar-10-batches-bin");
  for (const char* const name : {"resnet", "cifar10"}) {
    Child example({EXAMPLES_FOLDER "/" + std::string(name), "--batch", "8", "--steps", "1", "--data",
                   (folder_ / "data").string()});
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << name << "\n" << example.errors();
  }
}

TEST_P(TrainingExamples, RefuseWrongFlags) {
  expect_refusal(with_data({"--no-such-flag"}), 2, "no-such-flag");
  expect_refusal(with_data({"stray"}), 2, "unknown argument 'stray'");
  expect_refusal(with_data({"--epochs", "0"}), 2, "--epochs, --batch and --log-every must be positive");
  expect_refusal(with_data({"--steps", "many"}), 2, "many");
  expect_refusal(with_data({"--batch", "100000"}), 2, "larger than the set of");
  expect_refusal(with_data({"--json-file", (folder_ / "nowhere/run.json").string()}), 1,
                 "nowhere/run.json: cannot be written");
}

TEST_P(TrainingExamples, RefuseDamagedData) {
  fs::resize_file(folder_ / "data" / GetParam().set / GetParam().file, 100);
  expect_refusal(with_data({}), 1, GetParam().file);
}

TEST_P(TrainingExamples, SayHowToUseThem) {
  Child example({EXAMPLES_FOLDER "/" + GetParam().name, "--help"});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  for (const char* const flag : {"--data", "--epochs", "--steps", "--json-file"})
    EXPECT_THAT(example.output(), HasSubstr(flag));
}

template <typename Case> std::string name_of(const ::testing::TestParamInfo<Case>& tested) { return tested.param.name; }
INSTANTIATE_TEST_SUITE_P(Each, TrainingExamples, ::testing::ValuesIn(examples()), name_of<Example>);
INSTANTIATE_TEST_SUITE_P(Each, TrainingExamplesIn16Bits,
                         ::testing::Values(examples()[1], examples()[3], examples()[4], examples()[7]),
                         name_of<Example>);
INSTANTIATE_TEST_SUITE_P(Each, QuickTrainingExamples,
                         ::testing::Values(examples()[0], examples()[1], examples()[2], examples()[6]),
                         name_of<Example>);
INSTANTIATE_TEST_SUITE_P(Each, ShortTrainings, ::testing::ValuesIn(short_trainings()), name_of<ShortTraining>);

}  // namespace
}  // namespace lockstep::testing
