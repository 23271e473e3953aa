// export_onnx() without a runtime: errors, the same bytes twice, an unchanged module, all operators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/upsample.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/tensor/random.h"
#include "src/models/onnx/converters.h"
#include "tests/models/onnx_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/pattern.h"
#include "tests/support/temporary.h"

namespace lockstep::models {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class OnnxExport : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::temporary("onnx_export");
    fs::create_directory(folder_);
    manual_seed(3);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name = "net.onnx") const { return folder_ + "/" + name; }
  std::string message(nn::Module& module, const Tensors& inputs, const OnnxOptions& options = {}) const {
    return message_of([&] { export_onnx(module, inputs, path(), options); });
  }
  // The message for a module that is a function of its inputs.
  std::string message_for(const FunctionModule::Function& function, const Tensors& inputs = {randn({2, 4})},
                          const OnnxOptions& options = {}) const {
    FunctionModule module(function);
    return message(module, inputs, options);
  }

 private:
  std::string folder_;
};

Tensors one(const Tensor& x) { return {x}; }

// -- what is written

TEST_F(OnnxExport, WritesTheSameBytesTwice) {
  for (const OnnxCase& each : model_cases()) {
    if (each.name.starts_with("resnet")) continue;
    const Tensors inputs = each.inputs(2);
    export_onnx(*each.module, inputs, path("first.onnx"), each.options);
    export_onnx(*each.module, inputs, path("second.onnx"), each.options);
    EXPECT_TRUE(bytes_of_file(path("first.onnx")) == bytes_of_file(path("second.onnx"))) << each.name;
  }
}

TEST_F(OnnxExport, ChangesNothingOfTheModule) {
  auto norm = std::make_shared<nn::BatchNorm>(3);
  auto linear = std::make_shared<nn::Linear>(3, 4);
  FunctionModule net([=](const Tensors& in) { return one((*linear)((*norm)(in[0]))); }, {norm, linear});
  linear->eval();
  std::vector<Tensor> before;
  for (const NamedTensor& each : net.state_dict()) before.push_back(each.tensor.clone());
  const Tensor expected = [] {
    manual_seed(5);
    return randn({3});
  }();
  manual_seed(5);
  export_onnx(net, {numbers(2, {3})}, path());
  manual_seed(5);
  export_onnx(net, {Tensor::full({2, 3}, 1)}, path());
  EXPECT_EQ(std::memcmp(randn({3}).buffer().data(), expected.buffer().data(), expected.bytes()), 0);
  EXPECT_TRUE(net.is_training() && norm->is_training());
  EXPECT_FALSE(linear->is_training());
  const auto after = net.state_dict();
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(std::memcmp(after[i].tensor.buffer().data(), before[i].buffer().data(), before[i].bytes()), 0);
    EXPECT_EQ(node_of(after[i].tensor), nullptr);
  }
  const Tensor x = randn({2, 3});
  EXPECT_FALSE(requires_grad(abs(x))) << "the trace has not ended";
}

TEST_F(OnnxExport, PutsLargeTensorsIntoASecondFile) {
  nn::Linear net(64, 32);
  const OnnxOptions options{.most_bytes_in_file = 4096};
  export_onnx(net, {randn({2, 64})}, path(), options);
  EXPECT_EQ(fs::file_size(path() + ".data"), 64U * 32 * 4);
  EXPECT_LT(fs::file_size(path()), 2000U);
  const std::string data = bytes_of_file(path() + ".data");
  EXPECT_EQ(std::memcmp(data.data(), net.weight.buffer().data(), data.size()), 0);
  EXPECT_THAT(bytes_of_file(path()), HasSubstr("net.onnx.data"));
  export_onnx(net, {randn({2, 64})}, path("whole.onnx"));
  EXPECT_FALSE(fs::exists(path("whole.onnx.data")));
  EXPECT_GT(fs::file_size(path("whole.onnx")), 64U * 32 * 4);
}

TEST_F(OnnxExport, AnErrorLeavesTheOldFile) {
  nn::Linear net(4, 3);
  export_onnx(net, {randn({2, 4})}, path());
  const std::string before = bytes_of_file(path());
  EXPECT_NE(message_for([](const Tensors& in) { return one(dropout(in[0], 0.5F)); }), "nothing was thrown");
  EXPECT_TRUE(bytes_of_file(path()) == before);
  EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(path()).parent_path()), {}), 1);
}

// -- operators

struct UnknownNode : Node {
  using Node::Node;
  const char* name() const override { return "relu"; }  // the name alone makes no operator of Lockstep of it
  void backward(const Tensor&, std::span<const GradTarget>) override {}
};

TEST_F(OnnxExport, RefusesAnOperatorOfTheProgram) {
  auto layer = std::make_shared<FunctionModule>([](const Tensors& in) {
    const Tensor y = in[0].clone();
    record<UnknownNode>(y, {in[0]});
    return one(y);
  });
  FunctionModule net([=](const Tensors& in) { return (*layer)(in); }, {layer});
  EXPECT_THAT(message(net, {randn({2, 4})}),
              AllOf(HasSubstr("'relu' in module 'layer0' (result (2, 4)) has no counterpart in ONNX"),
                    HasSubstr("not one of Lockstep's")));
}

TEST_F(OnnxExport, RefusesOperatorsOfTrainingByName) {
  EXPECT_THAT(message_for([](const Tensors& in) { return one(dropout(in[0], 0.5F)); }),
              AllOf(HasSubstr("'dropout'"), HasSubstr("is_training()")));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(nn::mse_loss(in[0], in[0] * 2)); }),
              AllOf(HasSubstr("'mse_loss'"), HasSubstr("a loss belongs to training")));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(batch_norm(in[0], {}, {}, {}, {})); }),
              AllOf(HasSubstr("'batch_norm'"), HasSubstr("as in training")));
}

TEST_F(OnnxExport, AnUnusedOperatorMayBeUnknown) {
  EXPECT_EQ(message_for([](const Tensors& in) {
              nn::mse_loss(in[0], in[0] * 2);
              return one(in[0] * 2);
            }),
            "nothing was thrown");
}

// Every Node of the library says what it computed, or is listed with a reason; every operator of the list is in a case.
TEST_F(OnnxExport, NoOperatorIsForgotten) {
  std::set<std::string> expected, found;
  for (const onnx::OnnxOperator& each : onnx::onnx_operators()) {
    if (each.convert != nullptr)
      expected.insert(std::string(each.name));
    else
      EXPECT_NE(each.reason, nullptr) << each.name;
  }
  std::set<std::int64_t> functions;
  for (const auto& cases : {operator_cases(), layer_cases(), model_cases()})
    for (const OnnxCase& each : cases) {
      if (each.name.starts_with("resnet50")) continue;
      for (const onnx::TracedStep& step : onnx::trace_model(*each.module, each.inputs(1)).steps) {
        found.insert(std::string(onnx::operator_of(step)->name));
        if (step.first.count("unary") != 0) functions.insert(std::get<std::int64_t>(step.first.at("unary")));
      }
    }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(functions.size(), std::size(kUnaryFunctions)) << "a unary function is in no case";
}

TEST_F(OnnxExport, EveryNodeOfTheLibraryDescribesItselfOrIsListed) {
  // These belong to training or to several devices; the table of operators has their names and reasons.
  const std::set<std::string> without = {"DropoutNode",      "CheckpointNode",      "ParallelNode",
                                         "BranchOutputNode", "CrossEntropyNode",    "NllLossNode",
                                         "L2LossNode",       "ElementwiseLossNode", "GatheredOutputNode",
                                         "HubNode",          "PartialBatchNormNode"};
  int nodes = 0;
  for (const char* folder : {"src/autograd", "src/nn", "src/train", "src/ddp", "src/models"})
    for (const auto& entry : fs::recursive_directory_iterator(std::string(LOCKSTEP_SOURCE_ROOT "/") + folder)) {
      if (!entry.is_regular_file()) continue;
      std::string text = bytes_of_file(entry.path().string());
      for (std::size_t at = text.find(" : public Node {"); at != std::string::npos;
           at = text.find(" : public Node {", at + 1)) {
        const std::size_t begin = text.rfind(' ', at - 1) + 1;
        const std::string name = text.substr(begin, at - begin), body = text.substr(at, text.find("\n};", at) - at);
        const bool describes = body.find("attributes() const override") != std::string::npos;
        EXPECT_EQ(describes, without.count(name) == 0) << name << " in " << entry.path();
        ++nodes;
      }
    }
  EXPECT_GT(nodes, 40);
}

// -- values that depend on the batch

TEST_F(OnnxExport, RefusesWhatDependsOnTheNumberOfSamples) {
  EXPECT_THAT(message_for([](const Tensors& in) {
                Tensors rows;
                for (std::int64_t n = 0; n < in[0].shape()[0]; ++n) rows.push_back(in[0][n]);
                return one(stack(rows));
              }),
              HasSubstr("for 2 samples, but"));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] * static_cast<float>(in[0].shape()[0])); }),
              AllOf(HasSubstr("'scale'"), HasSubstr("another 'factor' in a batch of another size")));
  EXPECT_THAT(message_for([](const Tensors& in) {
                return one(in[0] + unsqueeze(arange(0.0F, static_cast<float>(in[0].shape()[0]), 1.0F), 1));
              }),
              AllOf(HasSubstr("'reshape'"), HasSubstr("depends on the batch size")));
  EXPECT_THAT(message_for([](const Tensors& in) {
                return one(matmul(in[0], in[0], {.transpose_b = true}) + eye(in[0].shape()[0]));
              }),
              HasSubstr("depends on the batch size"));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(slice(in[0], 0, {.stop = -1})); }),
              HasSubstr("depends on the batch size"));
}

TEST_F(OnnxExport, SaysThatTheModuleRefusedTheOtherBatch) {
  EXPECT_THAT(message_for([](const Tensors& in) {
                return one(reshape(in[0], {2, 2, 2}));
              }),
              AllOf(HasSubstr("computes 2 samples, but not 5 samples"), HasSubstr("(2, 2, 2)")));
}

TEST_F(OnnxExport, RefusesValuesThatNoOperatorRecorded) {
  const std::string expected = "that no operator has recorded";
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] * in[0].clone()[0]); }), HasSubstr("no operator"));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] * Tensor::full({4}, in[0].span<float>()[0])); }),
              AllOf(HasSubstr("'mul'"), HasSubstr(expected)));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] * Tensor::full({4}, in[0].span<float>()[0])); },
                          {Tensor::zeros({1, 4})}),
              HasSubstr(expected));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] + randn({4})); }), HasSubstr(expected));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] * sum(in[0]).item()); }), HasSubstr("'factor'"));
  EXPECT_THAT(
      message_for([](const Tensors& in) { return in[0].span<float>()[0] > 0 ? one(relu(in[0])) : one(tanh(in[0])); },
                  {Tensor::from<float>(std::vector<float>{1, 2, 3, -4}, {1, 4})}),
      HasSubstr("what the module calls may depend neither"));
  EXPECT_THAT(message_for([](const Tensors& in) {
                Tensor y = in[0] * 2;
                const Tensor z = y + 1;
                y.fill(3);
                return one(z);
              }),
              HasSubstr("later changed in place"));
}

TEST_F(OnnxExport, AConstantIsComparedWithEachOneOfTheOtherBatch) {
  const Tensor first = randn({4}), second = randn({4});
  EXPECT_THAT(message_for([=](const Tensors& in) {
                const Tensor x = in[0] + first;
                return one(x * (in[0].shape()[0] > 3 ? second : first));
              }),
              AllOf(HasSubstr("'mul'"), HasSubstr("that no operator has recorded")));
  EXPECT_EQ(message_for([=](const Tensors& in) { return one((in[0] + first) * first); }), "nothing was thrown");
}

TEST_F(OnnxExport, RefusesSizesThatAreTheNumberOfSamples) {
  const std::string expected = "depends on the number of samples";
  const Tensor x = randn({2, 3, 2, 4});  // samples first; a permutation puts them second
  const auto turned = [](const Tensors& in) { return permute(in[0], {1, 0, 2, 3}); };
  EXPECT_THAT(message_for(
                  [&](const Tensors& in) {
                    const Tensor q = turned(in);
                    return one(scaled_dot_product_attention(q, q, q, {.causal = true}));
                  },
                  {x}),
              HasSubstr(expected));
  EXPECT_THAT(message_for(
                  [&](const Tensors& in) {
                    const Tensor q = turned(in);
                    return one(scaled_dot_product_attention(stack({q, q, q}, 2), {}));
                  },
                  {x}),
              HasSubstr(expected));
  EXPECT_THAT(message_for([&](const Tensors& in) { return one(group_norm(turned(in), 2)); }, {x}), HasSubstr(expected));
  EXPECT_THAT(message_for(
                  [&](const Tensors& in) {
                    return one(upsample(turned(in), {.scale = {2, 2}}));
                  },
                  {x}),
              HasSubstr(expected));
  EXPECT_THAT(message_for([&](const Tensors& in) {
                return one(local_response_norm(permute(in[0], {1, 0}), {}));
              }),
              HasSubstr(expected));
}

TEST_F(OnnxExport, LengthsMustBeThereInBothBatches) {
  EXPECT_THAT(message_for(
                  [](const Tensors& in) {
                    AttentionOptions options;
                    if (in[0].shape()[0] > 3) options.key_lengths.assign(static_cast<std::size_t>(in[0].shape()[0]), 2);
                    return one(scaled_dot_product_attention(in[0], in[0], in[0], options));
                  },
                  {randn({2, 3, 1, 4})}),
              HasSubstr("another 'key_lengths' in a batch of another size"));
}

TEST_F(OnnxExport, LengthsMustBeAnInput) {
  const auto masked = [](const std::vector<std::int64_t>& lengths, const Tensor& x) {
    return one(scaled_dot_product_attention(x, x, x, {.key_lengths = lengths}));
  };
  const Tensor x = randn({2, 3, 1, 4});
  EXPECT_THAT(message_for(
                  [&](const Tensors& in) {
                    return masked(std::vector<std::int64_t>(static_cast<std::size_t>(in[0].shape()[0]), 2), in[0]);
                  },
                  {x}),
              HasSubstr("lengths of samples that no input of the module has"));
  const auto reads_lengths = [&](const Tensors& in) {
    const auto span = in[1].span<std::int64_t>();
    return masked({span.begin(), span.end()}, in[0]);
  };
  const Tensor lengths = Tensor::from<std::int64_t>(std::vector<std::int64_t>{3, 1}, {2});
  EXPECT_EQ(message_for(reads_lengths, {x, lengths}), "nothing was thrown");
  EXPECT_THAT(message_for(reads_lengths, {x, lengths, lengths}),
              HasSubstr("lengths that two inputs of the module have, 'input_1' and 'input_2'"));
  const auto gru = std::make_shared<nn::GRU>(4, 3);
  const auto of_constants = [&](const Tensors& in) {
    const std::vector<std::int64_t> all(static_cast<std::size_t>(in[0].shape()[0]), 2);
    return one(gru->run(in[0], {.lengths = all}).output);
  };
  EXPECT_THAT(
      message_for(of_constants, {randn({2, 3, 4})}),
      HasSubstr("'length_mask' in module '' (result (3, 2, 1)) has lengths of samples that no input of the module has"));
}

// -- calls

TEST_F(OnnxExport, RefusesInputsAndOutputsWithoutAConnection) {
  EXPECT_THAT(message_for([](const Tensors& in) { return one(in[0] * 2); }, {randn({2, 4}), randn({2, 4})}),
              HasSubstr("no output depends on input 'input_1'"));
  EXPECT_THAT(message_for([](const Tensors& in) {
                return Tensors{in[0] * 2, Tensor::full({3}, 1) * 2};
              }),
              HasSubstr("output 'output_1' depends on no input"));
}

TEST_F(OnnxExport, RefusesOtherTypes) {
  nn::Linear net(4, 3);
  EXPECT_THAT(message(net, {cast(randn({2, 4}), DType::kBFloat16)}),
              AllOf(HasSubstr("example input 0 is bfloat16"), HasSubstr("expected float32")));
  EXPECT_THAT(message_for([](const Tensors& in) { return one(cast(in[0], DType::kFloat16)); }),
              AllOf(HasSubstr("'cast'"), HasSubstr("16-bit")));
  EXPECT_EQ(
      [&] {
        const AutoCast cast(DType::kBFloat16);
        return message(net, {randn({2, 4})});
      }(),
      "nothing was thrown");
}

TEST_F(OnnxExport, ChecksItsArguments) {
  nn::Linear net(4, 3);
  const Tensor x = randn({2, 4});
  EXPECT_THAT(message(net, {}), HasSubstr("got no example inputs"));
  EXPECT_THAT(message(net, {Tensor()}), HasSubstr("got an undefined tensor"));
  EXPECT_THAT(message(net, {Tensor::zeros({0, 4})}), HasSubstr("must have samples, (N, ...), got (0, 4)"));
  EXPECT_THAT(message(net, {x, randn({3, 4})}), HasSubstr("2 in input 0, 3 in input 1"));
  EXPECT_THAT(message(net, {x}, {.input_names = {"a", "b"}}), HasSubstr("got 2 input names"));
  EXPECT_THAT(message(net, {x}, {.output_names = {"input"}}), HasSubstr("the name 'input'"));
  EXPECT_THAT(message(net, {x}, {.output_names = {""}}), HasSubstr("is empty or given twice"));
  EXPECT_THAT(message(net, {x}, {.batch_name = ""}), HasSubstr("batch_name is empty"));
  EXPECT_THAT(message(net, {x}, {.opset = 16}), HasSubstr("opset 16 is not one of 17 to 20"));
  EXPECT_THAT(message_of([&] { export_onnx(net, {x}, ""); }), HasSubstr("the file's name is empty"));
  EXPECT_THAT(message_of([&] { export_onnx(net, {x}, path("missing/net.onnx")); }),
              AllOf(HasSubstr("export_onnx: "), HasSubstr("there is no folder")));
  EXPECT_THAT(message_of([&] { export_onnx(net, {x}, fs::path(path()).parent_path()); }), HasSubstr("is a folder"));
}

}  // namespace
}  // namespace lockstep::models
