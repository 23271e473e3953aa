// Rank 1 of 2 reads, computes or loads something invalid. Both ranks throw its error text, in fit(), in evaluate(), and
// in a custom training loop with abort_on_error().
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>

#include "lockstep/train/trainer.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using namespace std::string_view_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kSamples = 16, kStepSamples = 4;  // on both ranks together

enum class Wrong { kNothing, kLabel, kWord, kColumn, kStateDict, kGzip, kText };

// A word, a column of its vector, and a label. Rank 1 has the odd samples.
class Words : public data::Dataset {
 public:
  Words(Wrong wrong, std::string folder) : wrong_(wrong), folder_(std::move(folder)) {}
  std::int64_t size() const override { return kSamples; }
  data::Sample get(std::int64_t index, std::int64_t) const override {
    const Wrong wrong = index % 2 == 1 ? wrong_ : Wrong::kNothing;
    if (wrong == Wrong::kGzip) data::read_lines(folder_ + "/damaged.gz");
    if (wrong == Wrong::kText) data::CharacterDataset(folder_ + "/latin1.txt", {.length = 2});
    const std::vector<std::int64_t> input = {wrong == Wrong::kWord ? 77 : index % 8,
                                             wrong == Wrong::kColumn ? 4 : index % 4};
    return {Tensor::from<std::int64_t>(input, {2}), data::scalar<std::int64_t>(wrong == Wrong::kLabel ? 9 : index % 3)};
  }

 private:
  Wrong wrong_;
  std::string folder_;
};

struct WordNet : nn::Module {
  nn::Embedding words{8, 4};
  nn::Linear out{1, 3};
  std::string kind() const override { return "WordNet"; }
  WordNet() { add("words", words), add("out", out); }
  Tensor forward(const Tensor& x) override {
    return out(gather(flatten(words(slice(x, 1, {.start = 0, .stop = 1}))), 1, slice(x, 1, {.start = 1, .stop = 2})));
  }
};

void load_another_models_state(nn::Module& model) { model.load_state_dict(nn::Linear(3, 3).state_dict()); }

class LoadAtStep2 : public Callback {
 public:
  void on_step_begin(Trainer& trainer, std::int64_t step) override {
    if (step == 1) load_another_models_state(trainer.model());
  }
};

void fit_or_evaluate(const std::shared_ptr<ProcessGroup>& group, const data::Pipeline& set, Wrong wrong, bool fits) {
  Trainer trainer([] { return std::make_unique<WordNet>(); });
  CompileOptions compile = classifying("ddp");
  compile.metrics.clear();
  compile.strategy_options.group = group;
  trainer.compile(compile);
  FitOptions options{.epochs = 1, .progress = false};
  if (wrong == Wrong::kStateDict && group->rank() == 1) options.callbacks = {std::make_shared<LoadAtStep2>()};
  if (fits)
    trainer.fit(set.batch(kStepSamples), options);
  else
    trainer.evaluate(set.batch(kStepSamples));
}

void train_by_hand(const std::shared_ptr<ProcessGroup>& group, const Words& set, Wrong wrong) {
  WordNet net;
  DistributedDataParallel ddp(net, group);
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1F});
  const data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false});
  abort_on_error(*group, [&] {
    for (auto& [inputs, labels] : data::DataLoader(set, sampler, {.batch_size = kStepSamples / 2})) {
      if (wrong == Wrong::kStateDict && group->rank() == 1) load_another_models_state(net);
      sgd.zero_grad();
      nn::cross_entropy(ddp(inputs), labels).backward();
      sgd.step();
    }
  });
}

enum class Where { kFit, kEvaluate, kLoop };

struct Mistake {
  const char* name;
  Wrong wrong;
  const char* message;  // rank 1's message
};
const Mistake kMistakes[] = {
    {"LabelOutOfRange", Wrong::kLabel, "label 9 in row 0 is outside 0..2"},
    {"IndexOfNoWord", Wrong::kWord, "embedding: index 77 at position 0 is outside 0..7"},
    {"IndexOfNoColumn", Wrong::kColumn, "gather: index 4 at position 0 is outside 0..3"},
    {"StateDictOfAnotherModel", Wrong::kStateDict, "load_state_dict: the state dict does not fit this WordNet"},
    {"DamagedGzip", Wrong::kGzip, "/damaged.gz: byte "},
    {"TextThatIsNotUtf8", Wrong::kText, "/latin1.txt: byte 2 (line 1), 0xe4, is not UTF-8"},
};

using Case = std::pair<Mistake, Where>;

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Mistake& mistake : kMistakes)
    for (const Where where : {Where::kFit, Where::kEvaluate, Where::kLoop})
      if (mistake.wrong != Wrong::kStateDict || where != Where::kEvaluate)
        cases.emplace_back(mistake, where);  // this loop loads nothing
  return cases;
}

class OneRanksMistake : public ::testing::TestWithParam<Case> {
 protected:
  OneRanksMistake() {
    std::string pattern = ::testing::TempDir() + "lockstep-mistakes-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::ofstream(folder_ + "/damaged.gz", std::ios::binary)
        << "\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff\xff\xff\xff\xff\xff\xff"sv;
    std::ofstream(folder_ + "/latin1.txt", std::ios::binary) << "ab\xe4z\n"sv;
  }
  ~OneRanksMistake() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> messages_of(Wrong wrong, Where where) const {
    std::vector<std::string> messages(2);
    const Words set(wrong, folder_);
    testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      messages[static_cast<std::size_t>(group->rank())] = message_of([&] {
        where == Where::kLoop ? train_by_hand(group, set, wrong)
                              : fit_or_evaluate(group, data::Pipeline(set), wrong, where == Where::kFit);
      });
    }));
    return messages;
  }

  std::string folder_;
};

std::string case_name(const ::testing::TestParamInfo<Case>& test) {
  const auto& [mistake, where] = test.param;
  return std::string(mistake.name) + (where == Where::kFit        ? "InFit"
                                      : where == Where::kEvaluate ? "InEvaluate"
                                                                  : "InALoop");
}
INSTANTIATE_TEST_SUITE_P(Table, OneRanksMistake, ::testing::ValuesIn(all_cases()), case_name);

TEST_P(OneRanksMistake, IsToldToTheOther) {
  const auto& [mistake, where] = GetParam();
  EXPECT_EQ(messages_of(Wrong::kNothing, where), std::vector<std::string>(2, "nothing was thrown"));
  const std::vector<std::string> messages = messages_of(mistake.wrong, where);
  EXPECT_THAT(messages[1], HasSubstr(mistake.message));
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1 aborted the group: "), HasSubstr(mistake.message)));
}

// The loss of another group, which is a subset of this one, ends this group like any other error.
TEST(AbortOnError, TheLossOfAnotherGroupEndsThisOne) {
  std::vector<std::string> messages(2);
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    messages[static_cast<std::size_t>(group->rank())] = message_of([&] {
      abort_on_error(*group, [&] {
        if (group->rank() == 1) throw PeerLost("of the part: rank 3 has left");
        group->barrier();
      });
    });
  }));
  EXPECT_EQ(messages[1], "of the part: rank 3 has left");
  EXPECT_THAT(messages[0], HasSubstr("rank 1 aborted the group: of the part: rank 3 has left"));
}

// One rank passes invalid options to functions that are called without a Trainer.
TEST(OneRanksOptions, EndBothRanks) {
  struct Call {
    std::string name;
    std::function<void(nn::Module& model, const data::Dataset& set, const EvaluateOptions& options)> make;
  };
  const Call calls[] = {{"evaluate",
                         [](nn::Module& model, const data::Dataset& set, const EvaluateOptions& options) {
                           TopK accuracy(1);
                           evaluate(model, set, {&accuracy}, options);
                         }},
                        {"predict", [](nn::Module& model, const data::Dataset& set, const EvaluateOptions& options) {
                           predict(model, set, options);
                         }}};
  const Words set(Wrong::kNothing, "");
  for (const Call& call : calls) {
    std::vector<std::string> messages(2);
    testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      WordNet net;
      messages[static_cast<std::size_t>(group->rank())] =
          message_of([&] { call.make(net, set, {.batch_size = group->rank() == 1 ? 0 : 4, .group = group}); });
    }));
    EXPECT_EQ(messages[1], call.name + ": got batch_size 0, expected at least 1");
    EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1 aborted the group: "), HasSubstr(messages[1])));
  }
}

}  // namespace
}  // namespace lockstep::train
