// Files of other frameworks: names, layouts and types; what does not fit; jobs of several ranks.
#include "lockstep/models/pretrained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/autograd/ops.h"
#include "lockstep/models/gpt2.h"
#include "lockstep/models/llama.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/train/safetensors.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PretrainedFolder {
 public:
  PretrainedFolder() { fs::create_directories(path_); }
  ~PretrainedFolder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(file(name)) << text; }
  void write_model(const std::vector<NamedTensor>& tensors, const std::string& name = "model.safetensors") const {
    train::save_safetensors(file(name), tensors, {{"format", "pt"}});
  }

 private:
  std::string path_ = testing::temporary("pretrained");
};

// 0, 1, 2, ...
Tensor counted(const Shape& shape) {
  const Tensor tensor = Tensor::empty(shape);
  for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.data<float>()[i] = static_cast<float>(i);
  return tensor;
}

std::vector<float> values(const Tensor& tensor) {
  const auto span = tensor.span<float>();
  return {span.begin(), span.end()};
}

struct ImageNet : nn::Module {
  nn::Conv2d conv{2, 3, {1, 2}};
  nn::Linear fc{2 * 1 * 2, 2};
  ImageNet() { add("conv", conv), add("fc", fc); }
  std::string kind() const override { return "ImageNet"; }
};

// Tensors of ImageNet in PyTorch's layouts.
std::vector<NamedTensor> pytorchs_tensors() {
  return {{"features.0.weight", counted({3, 2, 1, 2})},
          {"features.0.bias", counted({3})},
          {"fc.weight", counted({2, 4})},
          {"fc.bias", counted({2})}};
}
NameMapping image_names() {
  return {.rules = {{.in_file = R"(features\.0\.(.*))",
                     .in_module = "conv.$1",
                     .written_pattern = R"(conv\.(.*))",
                     .written_name = "features.0.$1"},
                    {.in_file = R"(fc\.weight)",
                     .in_module = "fc.weight",
                     .layout = {WeightLayout::kChannelsFirst, {2, 1, 2}},
                     .written_pattern = R"(fc\.weight)",
                     .written_name = "fc.weight"}}};
}

TEST(Pretrained, NamesAndLayoutsAreThoseOfTheModule) {
  const PretrainedFolder folder;
  folder.write_model(pytorchs_tensors());
  ImageNet net;
  load_pretrained(net, folder.path(), {.names = image_names()});
  EXPECT_THAT(values(net.conv.weight), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11));
  EXPECT_THAT(values(net.fc.weight), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(values(net.conv.bias), ElementsAre(0, 1, 2));

  save_pretrained(net, folder.file("again"), {.names = image_names()});
  const auto again = train::load_safetensors(folder.file("again/model.safetensors")).tensors;
  ASSERT_EQ(again.size(), 4U);
  for (const NamedTensor& wanted : pytorchs_tensors())
    for (const NamedTensor& found : again)
      if (found.name == wanted.name) {
        EXPECT_EQ(found.tensor.shape(), wanted.tensor.shape());
        EXPECT_EQ(values(found.tensor), values(wanted.tensor)) << wanted.name;
      }
}

TEST(Pretrained, TransposedWeightsAreTurned) {
  const PretrainedFolder folder;
  folder.write_model({{"weight", counted({3, 2})}});
  nn::Linear layer(3, 2, {.bias = false});
  const NameMapping names{
      .rules = {{.in_file = "weight", .in_module = "weight", .layout = {WeightLayout::kTransposed}}}};
  const LoadedPretrained loaded = load_pretrained(layer, folder.file("model.safetensors"), {.names = names});
  EXPECT_THAT(values(layer.weight), ElementsAre(0, 2, 4, 1, 3, 5));
  save_pretrained(layer, folder.file("again"), {.layout = &loaded.layout});
  EXPECT_THAT(values(train::load_safetensors(folder.file("again/model.safetensors")).tensors[0].tensor),
              ElementsAre(0, 1, 2, 3, 4, 5));
  const NameMapping wrong{.rules = {{.in_file = "(", .in_module = "weight"}}};
  EXPECT_THAT(message_of([&] { load_pretrained(layer, folder.path(), {.names = wrong}); }),
              HasSubstr("'(' is not a regular expression"));
}

TEST(Pretrained, SixteenBitTypesAreConverted) {
  const PretrainedFolder folder;
  nn::Linear layer(3, 2, {.bias = false});
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    folder.write_model({{"weight", cast(counted({2, 3}), type)}});
    const LoadedPretrained loaded = load_pretrained(layer, folder.path());
    EXPECT_THAT(values(layer.weight), ElementsAre(0, 1, 2, 3, 4, 5));
    save_pretrained(layer, folder.file("again"), {.layout = &loaded.layout});
    EXPECT_EQ(train::load_safetensors(folder.file("again/model.safetensors")).tensors[0].tensor.dtype(), type);
  }
}

TEST(Pretrained, EveryDifferenceIsNamedAndNothingIsChanged) {
  const PretrainedFolder folder;
  std::vector<NamedTensor> tensors = pytorchs_tensors();
  tensors[1].tensor = counted({4});
  tensors[3].name = "head.bias";
  folder.write_model(tensors);
  ImageNet net;
  net.conv.weight.fill(7);
  EXPECT_THAT(
      message_of([&] { load_pretrained(net, folder.path(), {.names = image_names()}); }),
      AllOf(HasSubstr(folder.path()), HasSubstr("'conv.bias' is float32 (3) here, float32 (4) in the state dict"),
            HasSubstr("1 missing from the state dict: 'fc.bias' float32 (2)"),
            HasSubstr("1 unexpected in the state dict: 'head.bias' float32 (2)")));
  EXPECT_EQ(net.conv.weight.data<float>()[0], 7);
  tensors[1].tensor = counted({3});
  folder.write_model(tensors);
  const LoadedPretrained loaded = load_pretrained(net, folder.path(), {.names = image_names(), .strict = false});
  EXPECT_THAT(loaded.keys.missing_keys, ElementsAre("fc.bias"));
  EXPECT_THAT(loaded.keys.unexpected_keys, ElementsAre("head.bias"));
  EXPECT_EQ(net.conv.weight.data<float>()[1], 2);
}

TEST(Pretrained, AFlattenOfOtherImagesIsRefused) {
  const PretrainedFolder folder;
  folder.write_model(pytorchs_tensors());
  NameMapping names = image_names();
  names.rules[1].layout.image = {3, 1, 2};
  ImageNet net;
  EXPECT_THAT(message_of([&] { load_pretrained(net, folder.path(), {.names = names}); }),
              HasSubstr("tensor 'fc.weight' has the shape (2, 4), expected (out, 6) for images of 3 channels, 1 x 2"));
}

TEST(Pretrained, FilesThatAreNotThereAreNamed) {
  const PretrainedFolder folder;
  nn::Linear layer(3, 2);
  const auto message = [&](const std::string& path) { return message_of([&] { load_pretrained(layer, path); }); };
  EXPECT_THAT(message(folder.file("none")), HasSubstr("/none: there is no such file or folder"));
  EXPECT_THAT(message(folder.path()), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  folder.write("pytorch_model.bin", "");
  EXPECT_THAT(message(folder.path()), HasSubstr("pytorch_model.bin is a pickle"));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"weight": "a.safetensors", "bias": "b.safetensors"}})");
  folder.write_model({{"weight", counted({2, 3})}}, "a.safetensors");
  EXPECT_THAT(message(folder.path()),
              AllOf(HasSubstr("index.json: names the file b.safetensors, which is not there"), HasSubstr("'bias'")));
  folder.write_model({{"other", counted({2})}}, "b.safetensors");
  EXPECT_THAT(message(folder.path()), HasSubstr("promises tensor 'bias' in b.safetensors, which does not have it"));
  folder.write_model({{"bias", counted({2})}}, "b.safetensors");
  load_pretrained(layer, folder.path());
  EXPECT_EQ(layer.bias.data<float>()[1], 1);
  folder.write("model.safetensors.index.json", R"({"weight_map": {"weight": "../a.safetensors"}})");
  EXPECT_THAT(message(folder.path()), HasSubstr("'../a.safetensors' is not in the folder of the index"));
  folder.write("model.safetensors.index.json", "[1]");
  EXPECT_THAT(message(folder.path()), HasSubstr("is not an index of safetensors"));
  folder.write("a.safetensors", "short");
  EXPECT_THAT(message(folder.file("a.safetensors")), HasSubstr("a.safetensors: 5 bytes are no safetensors file"));
}

TEST(Pretrained, AnotherArchitectureIsRefused) {
  const PretrainedFolder folder;
  folder.write("config.json", R"({"model_type": "t5"})");
  folder.write_model({});
  Gpt2 net({.vocabulary = 5, .positions = 4, .width = 4, .layers = 1, .heads = 2});
  EXPECT_THAT(message_of([&] { load_pretrained(net, folder.path(), {.names = gpt2_names()}); }),
              HasSubstr("config.json: is of another architecture: expected the model_type gpt2, found \"t5\""));
  EXPECT_THAT(message_of([&] { Gpt2Config::read(folder.path()); }), HasSubstr("expected the model_type gpt2"));
  folder.write("config.json", R"({"model_type": "gpt2", "vocab_size": "many"})");
  EXPECT_THAT(
      message_of([&] { Gpt2Config::read(folder.path()); }),
      HasSubstr("config.json: vocab_size: expected a positive whole number, at most 1073741823, found \"many\""));
  folder.write("config.json", R"({"model_type": "gpt2", "vocab_size": 1073741824})");
  EXPECT_THAT(message_of([&] { Gpt2Config::read(folder.path()); }), HasSubstr("at most 1073741823, found 1073741824"));
  LlamaConfig llama{.width = 1 << 20, .layers = 100'001, .heads = 1 << 20, .head_width = 1 << 20};
  folder.write("config.json", llama.json());
  EXPECT_THAT(message_of([&] { LlamaConfig::read(folder.path()); }),
              HasSubstr("num_hidden_layers: expected a positive whole number, at most 100000, found 100001"));
  llama.layers = 1;
  folder.write("config.json", llama.json());
  EXPECT_THAT(message_of([&] { LlamaConfig::read(folder.path()); }),
              HasSubstr("head_dim: expected at most 1023 for 1048576 heads, found 1048576"));
  folder.write("config.json", R"({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true})");
  EXPECT_THAT(message_of([&] { Gpt2Config::read(folder.path()); }),
              HasSubstr("scale_attn_by_inverse_layer_idx: expected false, the only one supported, found true"));
  folder.write("config.json", "{");
  EXPECT_THAT(message_of([&] { Gpt2Config::read(folder.path()); }), HasSubstr("config.json: is not JSON"));
  folder.write("config.json", Gpt2Config{.width = 24, .heads = 3, .inner = 7, .dropout = 0.25F}.json());
  const Gpt2Config again = Gpt2Config::read(folder.path());
  EXPECT_EQ(again.width, 24);
  EXPECT_EQ(again.inner, 7);
  EXPECT_EQ(again.dropout, 0.25F);
}

// "codes" has a type that no tensor of ours has.
TEST(Pretrained, TensorsThatCannotBeReadAreNamed) {
  const PretrainedFolder folder;
  const std::string header = R"({"weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
                             R"("codes":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[4,6]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + std::string(6, '\0');
  folder.write("model.safetensors", file);
  nn::Linear layer{1, 1, {.bias = false}};
  const auto refusal = [&](const LoadPretrainedOptions& options) {
    return message_of([&] { load_pretrained(layer, folder.path(), options); });
  };
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("tensor 'codes' cannot be read: it has the type F8_E4M3"),
                                 HasSubstr("the module has no tensor 'codes'")));
  EXPECT_NO_THROW(load_pretrained(layer, folder.path(), {.names = {.rules = {{"codes", ""}}}}));
  EXPECT_THAT(load_pretrained(layer, folder.path(), {.strict = false}).keys.unexpected_keys, ElementsAre("codes"));
}

TEST(Pretrained, FilesHaveFloats) {
  const PretrainedFolder folder;
  EXPECT_THAT(message_of([&] { save_pretrained(nn::Linear(1, 1), folder.path(), {.dtype = DType::kInt64}); }),
              HasSubstr("dtype is int64, expected float32"));
}

// A head that was replaced: names that only one side has.
TEST(Pretrained, WithoutStrictAJobGetsTheNamesAndALayoutOfWhatItHas) {
  const PretrainedFolder folder;
  folder.write_model({{"body.weight", counted({2, 3})},
                      {"body.bias", counted({2})},
                      {"old.weight", counted({5, 2})},
                      {"old.bias", counted({5})}});
  struct Net : nn::Module {
    nn::Linear body{3, 2}, head{2, 4};
    Net() { add("body", body), add("head", head); }
  };
  const auto failures = testing::run_ranks(2, "threads", [&](const std::shared_ptr<ProcessGroup>& group) {
    Net net;
    const LoadedPretrained loaded = load_pretrained(net, folder.path(), {.strict = false, .group = group});
    EXPECT_THAT(loaded.keys.missing_keys, ElementsAre("head.weight", "head.bias"));
    EXPECT_THAT(loaded.keys.unexpected_keys, ::testing::UnorderedElementsAre("old.weight", "old.bias"));
    EXPECT_THAT(values(net.body.weight), ElementsAre(0, 1, 2, 3, 4, 5));
    const std::string message =
        message_of([&] { save_pretrained(net, folder.file("again"), {.layout = &loaded.layout}); });
    EXPECT_THAT(message, group->rank() == 0 ? HasSubstr("the layout has no name for 'head.weight' (4, 2)")
                                            : HasSubstr("the layout is empty"));
  });
  EXPECT_THAT(failures, ElementsAre("", ""));
}

TEST(Pretrained, FilesThatWouldExhaustTheStackAreRefused) {
  const PretrainedFolder folder;
  nn::Linear layer(3, 2);
  folder.write_model({{std::string(5000, 'x'), counted({2})}});
  EXPECT_THAT(message_of([&] { load_pretrained(layer, folder.path(), {.names = gpt2_names()}); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("name has 5000 bytes, expected at most 1000")));
  folder.write("config.json", R"({"model_type": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  EXPECT_THAT(message_of([&] { Gpt2Config::read(folder.path()); }),
              HasSubstr("config.json: its JSON is nested more than 64 levels deep"));
}

TEST(Pretrained, RankZeroReadsForAJobAndItsErrorReachesAllRanks) {
  const PretrainedFolder folder;
  folder.write_model({{"weight", counted({2, 3})}, {"bias", counted({2})}});
  const auto failures = testing::run_ranks(2, "threads", [&](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear layer(3, 2);
    const std::string path = group->rank() == 0 ? folder.path() : "not read on this rank";
    load_pretrained(layer, path, {.group = group});
    EXPECT_THAT(values(layer.weight), ElementsAre(0, 1, 2, 3, 4, 5));
    const std::string missing = group->rank() == 0 ? folder.file("none") : folder.path();
    EXPECT_THAT(message_of([&] { load_pretrained(layer, missing, {.group = group}); }),
                HasSubstr("/none: there is no such file or folder"));
  });
  EXPECT_THAT(failures, ElementsAre("", ""));
}

}  // namespace
}  // namespace lockstep::models
