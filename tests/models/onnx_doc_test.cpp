// The code of docs/models.md about ONNX files.
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/support/temporary.h"

namespace ls = lockstep;

namespace {

struct Classifier : ls::nn::Module {
  ls::nn::Conv2d conv{3, 8, 3, {.padding = 1, .activation = ls::Activation::kReLU}};
  ls::nn::Linear out{8, 10};
  Classifier() { add("conv", conv), add("out", out); }
  ls::Tensor forward(const ls::Tensor& images) override { return out(ls::global_avg_pool2d(conv(images))); }
};

// Sentences with padding: the module reads its lengths from an input.
struct Sentences : ls::nn::Module {
  ls::models::Bert bert;
  explicit Sentences(const ls::models::BertConfig& config) : bert(config) { add("bert", bert); }
  ls::Tensors forward_all(const ls::Tensors& inputs) override {
    check_inputs(inputs, 2);
    const auto span = inputs[1].span<std::int64_t>();
    const std::vector<std::int64_t> lengths(span.begin(), span.end());
    return {ls::models::mean_pooling(bert.encode(inputs[0], lengths), lengths)};
  }
};

TEST(OnnxDocExamples, AreWritten) {
  const std::string path = ls::testing::temporary("doc.onnx");

  Classifier net;  // and trained
  const ls::Tensor examples = ls::randn({2, 32, 32, 3});  // images stay (N, H, W, C)
  ls::export_onnx(net, {examples}, path, {.input_names = {"images"}, .output_names = {"logits"}});

  EXPECT_GT(std::filesystem::file_size(path), 1000U);
  Sentences sentences({.vocabulary = 9, .positions = 8, .width = 8, .layers = 1, .heads = 2, .inner = 8});
  const ls::Tensor ids = ls::Tensor::zeros({2, 6}, ls::DType::kInt64, ls::cpu_device());
  const ls::Tensor lengths = ls::Tensor::from<std::int64_t>(std::vector<std::int64_t>{4, 6}, {2}, ls::cpu_device());
  ls::export_onnx(sentences, {ids, lengths}, path);
  std::filesystem::remove(path);
}

}  // namespace
