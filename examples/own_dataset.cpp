// A data set, a module and a training loop of your own: topics of Reuters articles from their first 256 words. From the
// repository's root:
//
//   scripts/fetch-data reuters
//   build/launcher/lockrun -n 2 build/examples/own_dataset --data data
//
// It prints its progress, after each epoch the accuracy on a tenth of the training set that is held out (by which the
// learning rate was chosen), and in the end, after 3 s of CPU time of two ranks (AMD Zen 4), a line such as
//
//   accuracy 0.9058 on 2568 test samples, loss 0.684
#include <lockstep/lockstep.h>
#include <nlohmann/json.hpp>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace ex = lockstep::examples;
namespace {

constexpr std::int64_t kWords = 10'000, kTopics = 52, kLength = 256;  // word 0 pads short articles

// Lines {"label": 4, "tokens": [1, 3, ...]}. All samples have the same shapes, so that they are written directly into a
// batch's memory.
struct Articles : ls::data::FixedShapeDataset {
  std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> all;  // words and topic
  explicit Articles(const std::string& path) {
    for (const std::string& line : ls::data::read_lines(path)) try {
        const auto record = nlohmann::json::parse(line);
        all.emplace_back(record.at("tokens").get<std::vector<std::int64_t>>(), record.at("label").get<std::int64_t>());
      } catch (const nlohmann::json::exception& error) {
        throw ls::FileError("{}: line {}: {}", path, all.size() + 1, error.what());
      }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(all.size()); }
  std::vector<ls::data::TensorSpec> element_spec() const override {
    return {{{kLength}, ls::DType::kInt64}, {{}, ls::DType::kInt64}};
  }
  // The loader's threads call this: it depends on the index and the epoch alone, and changes nothing.
  void read(std::int64_t index, std::int64_t, const ls::data::Row& row) const override {
    const auto& [words, topic] = all.at(static_cast<std::size_t>(index));
    const auto to = row.span<std::int64_t>(0);
    const std::size_t count = std::min(to.size(), words.size());
    std::fill(std::copy_n(words.begin(), count, to.begin()), to.end(), 0);
    row.value<std::int64_t>(1) = topic;
  }
};

// The mean of the words' vectors, followed by two layers.
struct Classifier : ls::nn::Module {
  ls::nn::Embedding words{kWords, 64, /*padding=*/0};
  ls::nn::Linear hidden{64, 128, {.activation = ls::Activation::kReLU}}, topic{128, kTopics};
  ls::nn::Dropout dropout{0.3F};
  Classifier() { add("words", words), add("hidden", hidden), add("dropout", dropout), add("topic", topic); }
  ls::Tensor forward(const ls::Tensor& numbers) override {  // (N, T) int64 to (N, topics)
    return topic(dropout(hidden(ls::mean(words(numbers), 1))));
  }
};

int train(const ex::TrainingFlags& flags) {
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  check_json_file(flags, *group);
  const std::string folder = find_data(flags, "reuters", {"reuters_train.jsonl.gz"});
  const Articles known(folder + "/reuters_train.jsonl.gz"), test(folder + "/reuters_test.jsonl.gz");
  const auto parts = random_split(known, {known.size() - known.size() / 10, known.size() / 10}, /*seed=*/1);
  const ls::data::Subset &articles = parts[0], &held_out = parts[1];
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), articles.size());
  const ex::Steps steps = steps_of(flags, articles.size());
  ls::manual_seed(flags.seed);
  Classifier net;
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);  // rank 0's weights to all; hooks that average the gradients
  ls::optim::AdamW adam(ddp.parameters(), {.lr = flags.lr});
  ls::data::DistributedSampler sampler(articles.size(), group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::train::Progress progress(progress_of(flags, steps, *group, "articles"));
  ex::Score validation;
  for (std::int64_t step = 0; step < steps.last;) {
    sampler.set_epoch(step / steps.per_epoch);  // another order in each epoch, the same on all ranks
    for (auto& [words, topics] :
         ls::data::DataLoader(articles, sampler, {.batch_size = batch, .device = &device, .drop_last = true})) {
      const ls::Tensor loss = ls::nn::cross_entropy(ddp(words), topics);
      adam.zero_grad();
      loss.backward();
      adam.step();
      progress.step(++step, loss, flags.batch);
      if (step == steps.last) break;
    }
    validation = ex::score_of(net, held_out, device);
    progress.message(validation.text("validation"));
  }
  const ex::Score score = ex::score_of(net, test, device);
  progress.message(score.text());
  write_json_file(flags, *group,
                  {{"accuracy", score.accuracy}, {"validation_loss", validation.loss}, {"steps", steps.last}});
  return 0;
}

int run(int argc, char** argv) {
  ex::TrainingFlags flags{.epochs = 10, .batch = 64, .lr = 2e-2F};
  const ex::Program program{"own_dataset", "Learns the topics of Reuters articles on every rank.",
                            "reuters_{train,test}.jsonl.gz"};
  return read_flags(program, argc, argv, flags) ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("own_dataset", run, argc, argv); }
