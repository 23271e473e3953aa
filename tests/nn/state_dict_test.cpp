// State dicts: their contents, what loading copies, and the errors for those of another model; freeze and apply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Counted : nn::Module {
  nn::Linear hidden{3, 4}, out{4, 2, {.bias = false}};
  Tensor steps = Tensor::zeros({1}, DType::kInt64), absent;
  Counted() {
    add("hidden", hidden);
    add("out", out);
    add_buffer("steps", steps);
    add_buffer("absent", absent);
  }
  Tensor forward(const Tensor& x) override { return out(hidden(x)); }
  std::string kind() const override { return "Counted"; }
};

std::vector<std::string> state_names(const std::vector<NamedTensor>& entries) {
  std::vector<std::string> names;
  for (const NamedTensor& entry : entries) names.push_back(entry.name);
  return names;
}

std::vector<NamedTensor> copied(const nn::Module& module) {
  std::vector<NamedTensor> entries = module.state_dict();
  for (NamedTensor& entry : entries) entry.tensor = entry.tensor.clone();
  return entries;
}

std::vector<float> all_values(const nn::Module& module) {
  std::vector<float> values;
  for (const Tensor& tensor : module.parameters())
    for (const float value : tensor.span<float>()) values.push_back(value);
  return values;
}

TEST(StateDict, HasParametersThenBuffersThatAreDefined) {
  const Counted net;
  EXPECT_THAT(state_names(net.state_dict()), ElementsAre("hidden.weight", "hidden.bias", "out.weight", "steps"));
  EXPECT_TRUE(net.state_dict()[0].tensor.is_same(net.hidden.weight)) << "handles, not copies";
}

TEST(StateDict, LoadsByNameIntoTheSameMemory) {
  const Counted from;
  from.steps.span<std::int64_t>()[0] = 7;
  Counted to;
  const float* memory = to.hidden.weight.data<float>();
  const std::uint64_t version = to.hidden.weight.version();
  std::vector<NamedTensor> entries = from.state_dict();
  std::reverse(entries.begin(), entries.end());
  const nn::IncompatibleKeys keys = to.load_state_dict(entries);
  EXPECT_THAT(keys.missing_keys, IsEmpty());
  EXPECT_THAT(keys.unexpected_keys, IsEmpty());
  EXPECT_EQ(all_values(to), all_values(from));
  EXPECT_EQ(to.steps.span<std::int64_t>()[0], 7);
  EXPECT_EQ(to.hidden.weight.data<float>(), memory);
  EXPECT_NE(to.hidden.weight.data<float>(), from.hidden.weight.data<float>());
  EXPECT_GT(to.hidden.weight.version(), version) << "backward must see that values changed";
  EXPECT_TRUE(requires_grad(to.hidden.weight));
}

TEST(StateDict, ItsOwnLoadsWithoutAnyChange) {
  Counted net;
  const auto before = all_values(net);
  net.load_state_dict(net.state_dict());
  EXPECT_EQ(all_values(net), before);
}

TEST(StateDict, StrictNamesEveryDifferenceAndChangesNothing) {
  Counted net;
  const auto before = all_values(net);
  std::vector<NamedTensor> entries = copied(Counted());
  entries[0].name = "hidden.wait";
  entries[1].tensor = Tensor::zeros({5});
  entries[2].tensor = Tensor();
  entries[3].tensor = Tensor::zeros({1});
  entries.push_back({"extra", Tensor::zeros({1, 2})});
  entries.push_back({"extra", Tensor::zeros({1, 2})});
  EXPECT_THAT(
      message_of([&] { net.load_state_dict(entries); }),
      AllOf(HasSubstr("load_state_dict: the state dict does not fit this Counted, which was not changed"),
            HasSubstr("1 missing from the state dict: 'hidden.weight' float32 (4, 3)"),
            HasSubstr("2 unexpected in the state dict: 'hidden.wait' float32 (4, 3), 'extra' float32 (1, 2)"),
            HasSubstr("3 different: 'hidden.bias' is float32 (4) here, float32 (5) in the state dict, 'out.weight' is "
                      "float32 (2, 4) "
                      "here, undefined in the state dict, 'steps' is int64 (1) here, float32 (1) in the state dict"),
            HasSubstr("1 more than once in the state dict: 'extra'"), HasSubstr("same options")));
  EXPECT_EQ(all_values(net), before);
}

TEST(StateDict, OfManyDifferencesEachIsSaid) {
  constexpr int kLayers = 300;
  nn::Sequential net;
  std::vector<NamedTensor> given;
  for (int i = 0; i < kLayers; ++i) {
    net.append<nn::Linear>(1, 1, nn::LinearLayerOptions{.bias = false});
    given.push_back({fmt::format("other.{}", i), Tensor::zeros({2})});
  }
  const std::string message = message_of([&] { net.load_state_dict(given); });
  EXPECT_THAT(message, AllOf(HasSubstr("300 missing"), HasSubstr("300 unexpected"), HasSubstr(".strict = false"),
                             Not(HasSubstr("..."))));
  for (int i = 0; i < kLayers; ++i)
    EXPECT_THAT(message, AllOf(HasSubstr(fmt::format("'{}.weight' float32 (1, 1)", i)),
                               HasSubstr(fmt::format("'other.{}' float32 (2)", i))));
}

TEST(StateDict, FloatingTypesAreConverted) {
  nn::Linear from(3, 2), to(3, 2);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<NamedTensor> half;
    const NoGrad no_grad;
    for (const auto& [name, tensor] : from.state_dict()) half.push_back({name, cast(tensor, type)});
    to.load_state_dict(half);
    for (std::size_t i = 0; i < 2; ++i) {
      const Tensor expected = cast(half[i].tensor, DType::kFloat32);
      const Tensor got = to.state_dict()[i].tensor;
      EXPECT_TRUE(std::equal(got.span<float>().begin(), got.span<float>().end(), expected.span<float>().begin()))
          << name_of(type);
    }
  }
  const Tensor doubles = Tensor::empty({2, 3}, DType::kFloat64);
  for (int i = 0; i < 6; ++i) doubles.data<double>()[i] = 0.1 * i;
  to.load_state_dict({{"weight", doubles}}, {.strict = false});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(to.weight.data<float>()[i], static_cast<float>(0.1 * i));
}

TEST(StateDict, OfTiedWeightsOneNameIsEnough) {
  struct Net : nn::Module {
    nn::Linear in{3, 3};
    Tensor tied = in.weight;
    Net() {
      add("in", in);
      add_buffer("head", tied);
    }
  } net;
  EXPECT_THAT(
      net.load_state_dict({{"in.weight", Tensor::full({3, 3}, 2)}, {"in.bias", Tensor::zeros({3})}}).missing_keys,
      IsEmpty());
  EXPECT_EQ(net.tied.data<float>()[8], 2);
}

TEST(StateDict, APrefixInFrontOfAllNamesIsNamed) {
  Counted net;
  std::vector<NamedTensor> entries = copied(Counted());
  for (NamedTensor& entry : entries) entry.name = "module." + entry.name;
  EXPECT_THAT(message_of([&] { net.load_state_dict(entries); }),
              HasSubstr("The names of the state dict begin with 'module.', a prefix of a wrapper"));
  entries[0].name = "module.other";
  EXPECT_THAT(message_of([&] { net.load_state_dict(entries); }), Not(HasSubstr("a prefix of a wrapper")));
}

// (8, 3, 3, 3) can be (out, in, height, width) or (out, height, width, in).
TEST(StateDict, AFilesConvolutionsOfUnknownLayoutAreRefusedUntilItIsSaid) {
  nn::Sequential net;
  net.append<nn::Conv2d>(3, 8, 3, nn::Conv2dLayerOptions{.bias = false});
  net.append<nn::Conv1d>(3, 4, 3, nn::Conv1dLayerOptions{.bias = false});
  FileTensors file;
  file.push_back({"0.weight", Tensor::empty({8, 3, 3, 3})});
  file.push_back({"1.weight", Tensor::empty({4, 3, 3})});
  for (const NamedTensor& entry : file)
    for (std::int64_t i = 0; i < entry.tensor.count(); ++i) entry.tensor.data<float>()[i] = static_cast<float>(i);
  EXPECT_THAT(message_of([&] { net.load_state_dict(file); }),
              AllOf(HasSubstr("2 convolution weights whose layout the file does not specify: '0.weight' (8, 3, 3, "
                              "3), '1.weight' (4, 3, 3)"),
                    HasSubstr(".convolution_weights = ConvolutionWeights::kOihw")));
  net.load_state_dict(file, {.convolution_weights = nn::ConvolutionWeights::kOhwi});
  EXPECT_EQ(net.parameters()[0].data<float>()[1], 1);
  const auto expect_permuted = [&] {
    // out 1, row 2, column 0, channel 1 is at ((1 * 3 + 2) * 3 + 0) * 3 + 1 here, at ((1 * 3 + 1) * 3 + 2) * 3 + 0 in
    // the file.
    EXPECT_EQ(net.parameters()[0].data<float>()[46], 42);
    EXPECT_EQ(net.parameters()[1].data<float>()[(1 * 3 + 2) * 3 + 0], (1 * 3 + 0) * 3 + 2);
  };
  net.load_state_dict(file, {.convolution_weights = nn::ConvolutionWeights::kOihw});
  expect_permuted();
  file.convolution_weights = "OHWI";
  net.load_state_dict(file);
  EXPECT_EQ(net.parameters()[0].data<float>()[1], 1);
  file.convolution_weights = "OIHW";
  net.load_state_dict(file);
  expect_permuted();
  nn::Linear line(3, 2);
  FileTensors without_convolutions;
  for (const NamedTensor& entry : line.state_dict()) without_convolutions.push_back(entry);
  EXPECT_THAT(line.load_state_dict(without_convolutions).missing_keys, IsEmpty()) << "nothing is missing";
}

// Renamed tensors of a file still have the file's layout.
TEST(StateDict, AFilesTensorsMayBeRenamedInPlace) {
  nn::Sequential net;
  net.append<nn::Conv2d>(3, 8, 3, nn::Conv2dLayerOptions{.bias = false});
  FileTensors file;
  file.push_back({"module.0.weight", Tensor::full({8, 3, 3, 3}, 2)});
  EXPECT_THAT(message_of([&] { net.load_state_dict(file); }), HasSubstr("begin with 'module.'"));
  for (NamedTensor& entry : file) entry.name.erase(0, std::string_view("module.").size());
  EXPECT_THAT(message_of([&] { net.load_state_dict(file); }),
              HasSubstr(".convolution_weights = ConvolutionWeights::kOihw"));
  net.load_state_dict(file, {.convolution_weights = nn::ConvolutionWeights::kOihw});
  EXPECT_EQ(net.parameters()[0].data<float>()[0], 2);
}

TEST(StateDict, BatchNormTakesPyTorchsNamesAndThoseOfEarlierVersions) {
  struct Net : nn::Module {
    nn::BatchNorm norm{2};
    Net() { add("norm", norm); }
  } net;
  EXPECT_THAT(state_names(net.state_dict()),
              ElementsAre("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"));
  const Tensor variance = Tensor::full({2}, 3);
  std::vector<NamedTensor> earlier = copied(net);
  earlier[3] = {"norm.running_variance", variance};
  net.load_state_dict(earlier);
  EXPECT_EQ(net.norm.running_var.data<float>()[1], 3);

  std::vector<NamedTensor> pytorchs = copied(net);
  pytorchs.push_back({"norm.num_batches_tracked", Tensor::zeros({}, DType::kInt64)});
  net.load_state_dict(pytorchs);
  pytorchs.push_back({"num_batches_tracked", Tensor::zeros({}, DType::kInt64)});
  EXPECT_THAT(message_of([&] { net.load_state_dict(pytorchs); }),
              HasSubstr("1 unexpected in the state dict: 'num_batches_tracked'"));
}

TEST(StateDict, WithoutStrictReturnsWhatItLeftOut) {
  Counted net;
  const auto before = all_values(net);
  const nn::IncompatibleKeys keys = net.load_state_dict(
      {{"out.weight", Tensor::full({2, 4}, 9)}, {"head.weight", Tensor::zeros({1})}}, {.strict = false});
  EXPECT_THAT(keys.missing_keys, ElementsAre("hidden.weight", "hidden.bias", "steps"));
  EXPECT_THAT(keys.unexpected_keys, ElementsAre("head.weight"));
  EXPECT_EQ(net.out.weight.span<float>()[7], 9);
  EXPECT_EQ(all_values(net)[0], before[0]);
}

TEST(StateDict, WithoutStrictOtherShapesAreRefusedAllTheSame) {
  Counted net;
  const auto before = all_values(net);
  EXPECT_THAT(
      message_of([&] {
        net.load_state_dict({{"hidden.bias", Tensor::full({4}, 9)}, {"out.weight", Tensor::zeros({4, 2})}},
                            {.strict = false});
      }),
      AllOf(HasSubstr("1 different: 'out.weight' is float32 (2, 4) here, float32 (4, 2)"), Not(HasSubstr("missing"))));
  EXPECT_EQ(all_values(net), before);
}

TEST(Apply, VisitsChildrenFirst) {
  Counted net;
  std::vector<std::string> kinds;
  net.apply([&](nn::Module& module) { kinds.push_back(module.kind() + (module.children().empty() ? "" : "!")); });
  EXPECT_THAT(kinds, ElementsAre("Linear", "Linear", "Counted!"));
}

TEST(Freeze, TakesAllParametersOutOfTrainingAndBack) {
  Counted net;
  const auto backward = [&] { l2_loss(net(Tensor::full({1, 3}, 1))).backward(); };
  backward();
  const Tensor before = grad(net.out.weight).clone();
  net.hidden.freeze();
  EXPECT_FALSE(requires_grad(net.hidden.weight) || requires_grad(net.hidden.bias));
  EXPECT_TRUE(requires_grad(net.out.weight));
  clear_grad(net.out.weight);
  backward();
  EXPECT_EQ(grad(net.out.weight).span<float>()[0], before.span<float>()[0]);
  net.freeze();
  EXPECT_THROW(backward(), InvalidArgument) << "nothing is left to differentiate";
  net.freeze(false);
  EXPECT_FALSE(has_grad(net.hidden.weight)) << "from before it was frozen";
  backward();
  EXPECT_EQ(grad(net.out.weight).span<float>()[0], before.span<float>()[0]);
}

TEST(Modes, EvalIsTrainFalse) {
  Counted net;
  net.eval();
  EXPECT_FALSE(net.is_training() || net.out.is_training());
  net.hidden.train();
  EXPECT_TRUE(net.hidden.is_training());
  EXPECT_FALSE(net.is_training());
}

}  // namespace
}  // namespace lockstep
