// Models of transformers and torchvision, with random weights: the same results, the same 50 steps of AdamW with all
// weights and with low-rank ones, and files that both sides read.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "lockstep/models/bert.h"
#include "lockstep/models/gpt2.h"
#include "lockstep/models/llama.h"
#include "lockstep/models/pretrained.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/lora.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/adam.h"
#include "tests/faults/child.h"
#include "tests/models/reference_files.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;

constexpr double kOfLogits = 1e-5, kOfLosses = 1e-5, kAfterTraining = 1e-2;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ReferenceModels : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (reference_python().empty()) return;
    root_ = testing::temporary("models");
    made_ = run_reference("make", root_) == 0;
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }
  void SetUp() override {
    if (reference_python().empty())
      GTEST_SKIP() << "LOCKSTEP_TEST_TORCH_PYTHON names no python with transformers and torchvision";
    ASSERT_TRUE(made_);
  }
  static std::string folder(const std::string& name) { return root_ + "/" + name; }

 private:
  static inline std::string root_;
  static inline bool made_ = false;
};

Tensor evaluated(nn::Module& net, const Tensor& x) {
  const NoGrad no_grad;
  net.eval();
  return net(x);
}

// Writes the model, and its result for the reference to compare with what it computes from the files.
void write_again(nn::Module& net, const Tensor& x, const std::string& folder, const SavePretrainedOptions& options) {
  save_pretrained(net, folder, options);
  train::save_safetensors(folder + "/found.safetensors", {{"result", evaluated(net, x)}});
}

// The batches of reference_models.py come from PyTorch's generator, so that it also writes them.
std::vector<double> losses_of(nn::Module& net, const std::vector<NamedTensor>& parameters, const Tensor& batches) {
  optim::AdamW adam(parameters, {.lr = 1e-3F, .weight_decay = 0.01F});
  std::vector<double> losses;
  net.train();
  for (std::int64_t step = 0; step < batches.shape()[0]; ++step) {
    const Tensor ids = squeeze(slice(batches, 0, {step, step + 1}), 0);
    const std::int64_t length = ids.shape()[1];
    const Tensor logits = slice(net(ids), 1, {.stop = length - 1});
    const Tensor loss = nn::cross_entropy(logits, slice(ids, 1, {.start = 1}));
    adam.zero_grad();
    loss.backward();
    adam.step();
    losses.push_back(double{loss.item()});
  }
  return losses;
}

void expect_losses(const std::vector<double>& found, const Tensor& expected) {
  ASSERT_EQ(static_cast<std::int64_t>(found.size()), expected.count());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected.data<float>()[i], kOfLosses * expected.data<float>()[i]) << "step " << i;
}

std::unique_ptr<nn::Module> make_decoder(const std::string& name, const std::string& folder) {
  if (name == "gpt2") return std::make_unique<Gpt2>(Gpt2Config::read(folder));
  return std::make_unique<Llama>(LlamaConfig::read(folder));
}
NameMapping names_of(const std::string& name) { return name == "gpt2" ? gpt2_names() : llama_names(); }

TEST_F(ReferenceModels, DecodersGiveTheSameLogitsAndTrainAlike) {
  for (const std::string name : {"gpt2", "llama", "llama3", "llama_bf16", "qwen2", "qwen3"}) {
    SCOPED_TRACE(name);
    const Expected expected(folder(name));
    const auto net = make_decoder(name, folder(name));
    const LoadedPretrained loaded = load_pretrained(*net, folder(name), {.names = names_of(name)});
    EXPECT_LE(relative_error(evaluated(*net, expected["ids"]), expected["logits"]), kOfLogits);

    save_pretrained(*net, folder(name) + "/same", {.layout = &loaded.layout});
    EXPECT_TRUE(bytes_of(folder(name) + "/same/model.safetensors") == bytes_of(folder(name) + "/model.safetensors"))
        << "what was only read is written with other bytes";
    EXPECT_EQ(bytes_of(folder(name) + "/same/config.json"), bytes_of(folder(name) + "/config.json"));

    expect_losses(losses_of(*net, net->named_parameters(), expected["batches"]), expected["losses"]);
    EXPECT_LE(relative_error(evaluated(*net, expected["ids"]), expected["tuned_logits"]), kAfterTraining);
    // The reference loads one file of GPT-2, and shards of the others.
    write_again(
        *net, expected["ids"], folder(name) + "/again",
        {.names = names_of(name), .config = loaded.layout.config, .max_shard_size = name == "gpt2" ? 0 : 20'000});
    EXPECT_EQ(fs::exists(folder(name) + "/again/model.safetensors.index.json"), name != "gpt2");
  }
}

TEST_F(ReferenceModels, LowRankTrainingIsTheSame) {
  const Expected expected(folder("gpt2"));
  Gpt2 net(Gpt2Config::read(folder("gpt2")));
  load_pretrained(net, folder("gpt2"), {.names = gpt2_names()});
  const auto paths = nn::add_lora(net, {.rank = 4, .alpha = 8, .target = R"(.*attn\.c_attn|.*mlp\.c_fc)"});
  EXPECT_EQ(paths.size(), 4U);
  std::vector<NamedTensor> trained;
  for (const NamedTensor& each : net.named_parameters()) {
    if (!requires_grad(each.tensor)) continue;
    each.tensor.copy_from(expected["lora." + each.name]);
    trained.push_back(each);
  }
  EXPECT_EQ(trained.size(), 8U);
  expect_losses(losses_of(net, trained, expected["batches"]), expected["lora_losses"]);
  EXPECT_LE(relative_error(evaluated(net, expected["ids"]), expected["lora_logits"]), kAfterTraining);

  save_pretrained(net, folder("gpt2") + "/merged", {.names = gpt2_names(), .config = net.config().json()});
  EXPECT_NE(net.h[0].attn.c_attn.low_rank(), nullptr);
  Gpt2 merged(Gpt2Config::read(folder("gpt2") + "/merged"));
  load_pretrained(merged, folder("gpt2") + "/merged", {.names = gpt2_names()});
  const Tensor before = evaluated(net, expected["ids"]);
  EXPECT_LE(relative_error(evaluated(merged, expected["ids"]), before), 1e-5);
  nn::merge_lora(net);
  EXPECT_LE(relative_error(evaluated(net, expected["ids"]), before), 1e-5);
}

TEST_F(ReferenceModels, BertGivesTheSameWithPaddingTypesAndPooling) {
  const Expected expected(folder("bert"));
  Bert net(BertConfig::read(folder("bert")));
  const LoadedPretrained loaded = load_pretrained(net, folder("bert"), {.names = bert_names()});
  EXPECT_LE(relative_error(evaluated(net, expected["ids"]), expected["hidden"]), kOfLogits);
  const NoGrad no_grad;
  const auto given = expected["lengths"].span<std::int64_t>();
  const std::vector<std::int64_t> lengths(given.begin(), given.end());
  const Tensor hidden = net.encode(expected["ids"], lengths, expected["types"]);
  const Tensor padded = hidden.clone();
  const std::int64_t row = hidden.shape()[2];
  for (std::size_t n = 0; n < lengths.size(); ++n)
    std::fill(padded.data<float>() + (static_cast<std::int64_t>(n) * hidden.shape()[1] + lengths[n]) * row,
              padded.data<float>() + (static_cast<std::int64_t>(n) + 1) * hidden.shape()[1] * row, 0.0F);
  EXPECT_LE(relative_error(padded, expected["padded"]), kOfLogits);
  EXPECT_LE(relative_error(net.pool(hidden), expected["pooled"]), kOfLogits);
  EXPECT_LE(relative_error(normalize(mean_pooling(hidden, lengths)), expected["sentences"]), kOfLogits);
  write_again(net, expected["ids"], folder("bert") + "/again", {.names = bert_names(), .config = net.config().json()});
  save_pretrained(net, folder("bert") + "/same", {.layout = &loaded.layout});
  EXPECT_TRUE(bytes_of(folder("bert") + "/same/model.safetensors") == bytes_of(folder("bert") + "/model.safetensors"));
}

TEST_F(ReferenceModels, ResNetsOfTorchvisionGiveTheSame) {
  for (const std::string name : {"resnet18", "resnet50"}) {
    SCOPED_TRACE(name);
    const Expected expected(folder(name));
    ResNetConfig config = name == "resnet18" ? ResNetConfig::resnet18() : ResNetConfig::resnet50();
    config.classes = 10;
    ResNet net(config);
    load_pretrained(net, folder(name) + "/model.safetensors", {.names = torchvision_resnet_names()});
    EXPECT_LE(relative_error(evaluated(net, expected["images"]), expected["logits"]), 3e-5);
    write_again(net, expected["images"], folder(name) + "/again", {});
  }
}

TEST_F(ReferenceModels, ShardsAreReadTogether) {
  Llama whole(LlamaConfig::read(folder("llama"))), sharded(LlamaConfig::read(folder("sharded")));
  load_pretrained(whole, folder("llama"), {.names = llama_names()});
  load_pretrained(sharded, folder("sharded"), {.names = llama_names()});
  const std::vector<NamedTensor> a = whole.state_dict(), b = sharded.state_dict();
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::int64_t j = 0; j < a[i].tensor.count(); ++j)
      ASSERT_EQ(a[i].tensor.data<float>()[j], b[i].tensor.data<float>()[j]) << a[i].name;
}

TEST_F(ReferenceModels, TheExampleTunesAModelOnTwoRanks) {
  testing::Child job({LOCKRUN, "-n", "2", "--no-prefix", GPT2_LORA, "--model", folder("gpt2"), "--text",
                      folder("gpt2") + "/text.txt", "--length", "24", "--steps", "30", "--lr", "0.01", "--save",
                      folder("gpt2") + "/tuned"});
  ASSERT_EQ(job.wait(std::chrono::seconds(120)), 0) << job.errors() << job.output();
  const std::string output = job.output();
  EXPECT_NE(output.find("2048 of 38144 weights"), std::string::npos) << output;
  ASSERT_NE(output.rfind(" in the first step, "), std::string::npos) << output;
  float first = 0, last = 0;
  const std::string line = output.substr(output.rfind("\nloss ", output.rfind(" in the first step, ")) + 1);
  ASSERT_EQ(std::sscanf(line.c_str(), "loss %f in the first step, %f in the last", &first, &last), 2) << output;
  EXPECT_LT(last, first - 0.02F) << output;
}

// Tests run in the order of their definition: the others have written the models.
TEST_F(ReferenceModels, TransformersAndTorchvisionReadWhatWasWritten) {
  if (!fs::exists(folder("gpt2") + "/tuned") || !fs::exists(folder("resnet50") + "/again"))
    GTEST_SKIP() << "only after all other tests of this program, which write the models";
  EXPECT_EQ(run_reference("check", folder(".")), 0);
}

}  // namespace
}  // namespace lockstep::models
