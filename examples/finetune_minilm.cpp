// Fine-tunes a pretrained sentence encoder, MiniLM (Wang et al. 2020, arXiv:2002.10957), for the topics of Reuters
// articles: BERT with six layers, whose outputs are averaged over the words of an article. From the repository's root:
//
//   scripts/fetch-data reuters
//   scripts/fetch-model minilm
//   build/launcher/lockrun -n 2 build/examples/finetune_minilm --data data --model data/minilm
//
// It prints its progress and in the end the accuracy on the test set.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace ex = lockstep::examples;
namespace {

constexpr std::int64_t kTopics = 52, kPadding = 0;  // [PAD] of BERT's vocabulary

struct Flags : ex::TrainingFlags {
  std::string model;
  std::int64_t length = 64, test = 0;
};

// Lines {"label": 4, "tokens": [1, 3, ...]} of word numbers, as the token ids of a text of these words. Sample i is
// {ids (length) int64, topic () int64}; short articles are padded.
class Articles : public ls::data::FixedShapeDataset {
 public:
  Articles(const std::string& path, const std::vector<std::string>& words, const ls::data::Tokenizer& tokenizer,
           std::int64_t length)
      : length_(length) {
    for (const std::string& line : ls::data::read_lines(path)) {
      const auto record = nlohmann::json::parse(line);
      std::string text;
      for (const std::size_t word : record.at("tokens"))
        if (words.at(word).front() != '<') text += words[word] + " ";
      std::vector<std::int64_t> ids = tokenizer.encode(text);
      const std::int64_t end = ids.back();  // [SEP]
      if (static_cast<std::int64_t>(ids.size()) > length)
        ids.resize(static_cast<std::size_t>(length), end), ids.back() = end;
      ids.resize(static_cast<std::size_t>(length), kPadding);
      all_.emplace_back(std::move(ids), record.at("label"));
    }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(all_.size()); }
  std::vector<ls::data::TensorSpec> element_spec() const override {
    return {{{length_}, ls::DType::kInt64}, {{}, ls::DType::kInt64}};
  }
  void read(std::int64_t index, std::int64_t, const ls::data::Row& row) const override {
    const auto& [ids, topic] = all_.at(static_cast<std::size_t>(index));
    std::copy(ids.begin(), ids.end(), row.span<std::int64_t>(0).begin());
    row.value<std::int64_t>(1) = topic;
  }

 private:
  std::int64_t length_;
  std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> all_;
};

// The encoder, and a layer for the topics.
struct Classifier : ls::nn::Module {
  ls::models::Bert encoder;
  ls::nn::Linear topic;
  explicit Classifier(const ls::models::BertConfig& config) : encoder(config), topic(config.width, kTopics) {
    add("encoder", encoder), add("topic", topic);
  }
  ls::Tensor forward(const ls::Tensor& padded) override {  // (N, length) int64 to (N, topics)
    const ls::Tensor on_host = padded.to(ls::cpu_device());
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = 0; n < padded.shape()[0]; ++n) {
      const auto row = on_host.span<std::int64_t>().subspan(n * padded.shape()[1], padded.shape()[1]);
      lengths.push_back(std::find(row.begin(), row.end(), kPadding) - row.begin());
    }
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const ls::Tensor ids = ls::slice(padded, 1, {.stop = longest});
    return topic(ls::models::mean_pooling(encoder.encode(ids, lengths), lengths));
  }
};

int train(const Flags& flags) {
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  check_json_file(flags, *group);
  const std::string folder = find_data(flags, "reuters", {"reuters_train.jsonl.gz"});
  const ls::data::Tokenizer tokenizer(flags.model);
  const std::vector<std::string> words = ls::data::read_lines(folder + "/reuters_vocab.txt");
  const Articles articles(folder + "/reuters_train.jsonl.gz", words, tokenizer, flags.length),
      test(folder + "/reuters_test.jsonl.gz", words, tokenizer, flags.length);
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), articles.size());
  const ex::Steps steps = steps_of(flags, articles.size());

  ls::models::BertConfig config = ls::models::BertConfig::read(flags.model);
  config.pooler = false;
  ls::manual_seed(flags.seed);
  Classifier net(config);
  ls::models::NameMapping names = ls::models::bert_names();
  names.rules.insert(names.rules.begin(), {.in_file = R"(pooler\..*)"});
  ls::models::load_pretrained(net.encoder, flags.model, {.names = names, .group = group});
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::AdamW adam(ddp.parameters(), {.lr = flags.lr, .weight_decay = 0.01F});
  ls::data::DistributedSampler sampler(articles.size(), group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  ls::train::Progress progress(progress_of(flags, steps, *group, "articles"));
  for (std::int64_t step = 0; step < steps.last;) {
    sampler.set_epoch(step / steps.per_epoch);
    for (auto& [ids, topics] :
         ls::data::DataLoader(articles, sampler, {.batch_size = batch, .device = &device, .drop_last = true})) {
      // The rate falls to zero in a straight line.
      adam.set_lr(flags.lr * static_cast<float>(steps.last - step) / static_cast<float>(steps.last));
      const ls::Tensor loss = ls::nn::cross_entropy(ddp(ids), topics);
      adam.zero_grad();
      loss.backward();
      ls::optim::clip_grad_norm(ddp.parameters(), 1.0F);
      adam.step();
      progress.step(++step, loss, flags.batch);
      if (step == steps.last) break;
    }
  }
  const ex::Score score =
      flags.test == 0 ? ex::score_of(net, test, device) : ex::score_of(net, take(test, flags.test), device);
  progress.message(score.text());
  write_json_file(flags, *group, {{"accuracy", score.accuracy}, {"steps", steps.last}});
  return 0;
}

int run(int argc, char** argv) {
  Flags flags;
  flags.epochs = 1, flags.batch = 32, flags.lr = 2e-4F;
  const ex::Program program{"finetune_minilm", "Fine-tunes MiniLM for the topics of Reuters articles.",
                            "reuters_{train,test}.jsonl.gz and reuters_vocab.txt"};
  const auto add = [&](cxxopts::OptionAdder& adder) {
    adder("model", "folder of scripts/fetch-model minilm", cxxopts::value(flags.model)->default_value("data/minilm"));
    adder("length", "token ids of an article; the rest is cut off", cxxopts::value(flags.length)->default_value("64"));
    adder("test", "articles of the test set to score; 0: all", cxxopts::value(flags.test)->default_value("0"));
  };
  return read_flags(program, argc, argv, flags, add) ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("finetune_minilm", run, argc, argv); }
