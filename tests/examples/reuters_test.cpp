// examples/reuters on a small generated corpus, with every strategy: it learns, resumes, and refuses inconsistent
// arguments.
#include <gmock/gmock.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tensor/random.h"
#include "tests/data/recorded_reuters.h"
#include "tests/faults/child.h"
#include "tests/faults/hand_job.h"
#include "tests/support/strategies_of_one_process.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint32_t kTopics = 6, kWordsOfTopic = 8;

// Half of an article's words belong to its topic.
std::string articles(int count, std::uint64_t seed) {
  Philox random(seed, 0);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t topic = random.below(kTopics);
    nlohmann::json tokens = {1};
    for (std::uint32_t left = 20 + random.below(400); left > 0; --left)
      tokens.push_back(3 + (random.below(2) == 0 ? topic * kWordsOfTopic + random.below(kWordsOfTopic)
                                                 : random.below(kTopics * kWordsOfTopic)));
    text += nlohmann::json{{"label", topic}, {"tokens", tokens}}.dump() + "\n";
  }
  return text;
}

void write_gzip(const fs::path& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
  gzclose(file);
}

class Reuters : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "reuters");
    write_gzip(folder_ / "reuters/reuters_train.jsonl.gz", articles(400, 1));
    write_gzip(folder_ / "reuters/reuters_test.jsonl.gz", articles(60, 2));
    write_vocabulary("word");
    std::ofstream topics(folder_ / "reuters/reuters_topics.txt");
    for (std::uint32_t topic = 0; topic < kTopics; ++topic) topics << "topic" << topic << "\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write_vocabulary(const std::string& stem) const {
    std::ofstream words(folder_ / "reuters/reuters_vocab.txt");
    for (std::uint32_t word = 0; word < 3 + kTopics * kWordsOfTopic; ++word) words << stem << word << "\n";
  }
  struct Outcome {
    int code;
    std::string output, errors;
  };
  Outcome run(int ranks, std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {EXAMPLES_FOLDER "/reuters", "--data", folder_.string(), "--batch", "16", "--lr",
                                 "0.01", "--json-file", (folder_ / "run.json").string()});
    if (ranks > 0) flags.insert(flags.begin(), {LOCKRUN, "-n", std::to_string(ranks)});
    Child example(flags);
    const int code = example.wait(std::chrono::seconds(100));
    return {code, example.output(), example.errors()};
  }
  // Runs two ranks without lockrun, which would end the second one when the first one fails. Both must print `message`
  // and fail.
  void expect_refusal_on_all_ranks(const std::vector<std::string>& flags, const std::string& message,
                                   const Environment& environment = {}) const {
    HandJob job(2, environment);
    std::vector<std::string> command = {EXAMPLES_FOLDER "/reuters", "--data", folder_.string(), "--batch", "16"};
    command.insert(command.end(), flags.begin(), flags.end());
    for (int rank = 0; rank < 2; ++rank) job.start_command(rank, command);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_NE(job[rank].wait(std::chrono::seconds(100)), 0) << "rank " << rank;
      EXPECT_THAT(job[rank].errors(), HasSubstr(message)) << "rank " << rank;
      EXPECT_THAT(job[rank].output(), Not(HasSubstr("Epoch 1/")));
    }
  }
  nlohmann::json figures() const { return nlohmann::json::parse(std::ifstream(folder_ / "run.json")); }

  const fs::path folder_ = fs::path(::testing::TempDir()) / ("reuters-" + std::to_string(::getpid()));
};

TEST_F(Reuters, LearnsByEveryStrategy) {
  std::vector<std::string> strategies = lockstep::testing::strategies_of_one_process();
  strategies.emplace_back("ddp");
  for (const std::string& strategy : strategies) {
    SCOPED_TRACE(strategy);
    const Outcome outcome = run(strategy == "ddp" ? 2 : 0, {"--strategy", strategy, "--epochs", "3"});
    ASSERT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr(" embedding (Embedding)"), HasSubstr("Epoch 3/3\n"), HasSubstr("23/23 - "),
                      HasSubstr("ms/step - loss: "), HasSubstr(" - val_accuracy: "), HasSubstr("on 60 test samples")));
    EXPECT_GT(figures()["accuracy"].get<double>(), 0.5) << "there are six topics";
    EXPECT_GE(figures()["top5"].get<double>(), figures()["accuracy"].get<double>());
    EXPECT_EQ(figures()["steps"], 3 * 23) << "360 articles in batches of 16, the last one of 8";
  }
}

TEST_F(Reuters, ContinuesFromItsCheckpointOnlyWithTheSameVocabulary) {
  const std::string checkpoint = (folder_ / "ckpt").string(), plot = (folder_ / "run.svg").string(),
                    events = (folder_ / "events").string();
  ASSERT_EQ(run(2, {"--epochs", "1", "--checkpoint", checkpoint}).code, 0);
  const Outcome second = run(2, {"--epochs", "2", "--checkpoint", checkpoint, "--plot", plot, "--events", events});
  ASSERT_EQ(second.code, 0) << second.errors;
  EXPECT_THAT(second.output, AllOf(HasSubstr("Epoch 2/2\n"), Not(HasSubstr("Epoch 1/2"))));
  EXPECT_EQ(figures()["steps"], 2 * 23);
  EXPECT_TRUE(fs::exists(plot));
  EXPECT_FALSE(fs::is_empty(events));

  write_vocabulary("other");  // the same number of words, so the weights would fit
  expect_refusal_on_all_ranks({"--epochs", "3", "--checkpoint", checkpoint},
                              "was trained with another vocabulary (51 words, SHA-256");
  write_vocabulary("word");
  EXPECT_EQ(run(2, {"--epochs", "2", "--checkpoint", checkpoint}).code, 0) << "the checkpoint is intact";
}

// A file with the structure of Keras' reuters.npz: 24 articles.
TEST_F(Reuters, LearnsKerasTopicsWhereItsFileIsThere) {
  const auto& bytes = data::kNewReutersFile;
  std::ofstream(folder_ / "reuters/reuters.npz", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const Outcome outcome = run(2, {"--epochs", "2", "--batch", "4"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("(None, 46)"), HasSubstr("Epoch 2/2\n"), HasSubstr("on 5 test samples")));
}

TEST_F(Reuters, RefusesWhatDoesNotFitTogether) {
  const auto expect_refusal = [&](int ranks, const std::vector<std::string>& flags, const std::string& message) {
    const Outcome outcome = run(ranks, flags);
    EXPECT_NE(outcome.code, 0) << message;
    EXPECT_THAT(outcome.errors, HasSubstr(message));
    EXPECT_THAT(outcome.output, Not(HasSubstr("Epoch 1/")));
  };
  expect_refusal_on_all_ranks({"--strategy", "horovod"}, "unknown strategy 'horovod': expected one of ddp, mirrored, ");
  expect_refusal_on_all_ranks({}, "'cpu:65x' is invalid: expected cpu:2x", {{"LOCKSTEP_LOGICAL_DEVICES", "cpu:65x"}});
  expect_refusal(2, {"--strategy", "mirrored"},
                 "strategy 'mirrored' drives all devices from one process, and this job has 2 ranks");
  expect_refusal(0, {"--strategy", "mirrored", "--devices", "3"},
                 "a batch of 16 samples cannot be split evenly among 3 devices");
  expect_refusal_on_all_ranks({"--batch", "15"}, "--batch 15 cannot be divided among 2 ranks");
  expect_refusal_on_all_ranks({"--events", (folder_ / "reuters/reuters_topics.txt/below").string()},
                              "reuters_topics.txt/below");

  const fs::path train = folder_ / "reuters/reuters_train.jsonl.gz";
  write_gzip(train, articles(100, 1) + "{\"label\":6,\"tokens\":[1,2]}\n");
  expect_refusal(2, {}, "reuters_train.jsonl.gz: line 101: label 6 is out of range: expected 0..5");
  write_gzip(train, "{\"label\":0,\"tokens\":[1,51]}\n");
  expect_refusal(2, {}, "token 51 is out of range: expected 0..50, the words of reuters_vocab.txt");
  write_gzip(train, articles(100, 1));
  fs::resize_file(train, fs::file_size(train) - 40);
  expect_refusal_on_all_ranks({}, "reuters_train.jsonl.gz");
  expect_refusal_on_all_ranks({}, "gzip");
}

}  // namespace
}  // namespace lockstep::testing
