// Batches of padded text: with the number of counted labels as weight, each rank's mean becomes the mean over all
// ranks' labels.
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/data/collate.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/ranks.h"

namespace lockstep::testing {
namespace {

constexpr std::int64_t kTokens = 6, kClasses = 3;

// Token t has the label t % kClasses.
data::Sample text_of(const std::vector<std::int64_t>& tokens) {
  std::vector<std::int64_t> labels;
  for (const std::int64_t token : tokens) labels.push_back(token % kClasses);
  const Shape shape{static_cast<std::int64_t>(tokens.size())};
  return {Tensor::from<std::int64_t>(tokens, shape), Tensor::from<std::int64_t>(labels, shape)};
}

// Rank 0's texts have 6 tokens, rank 1's have 3.
std::vector<data::Sample> texts_of(int rank) {
  if (rank == 0) return {text_of({1, 2, 3, 4, 5}), text_of({3})};
  return {text_of({5}), text_of({4, 2})};
}

data::Batch padded(const std::vector<data::Sample>& texts) {
  return data::pad_collate({.target_value = static_cast<double>(kIgnoreIndex)})(texts);
}

struct Tagger : nn::Sequential {
  Tagger() {
    append_named<nn::Embedding>("tokens", kTokens, 4);
    append_named<nn::Linear>("tag", 4, kClasses);
  }
};

std::vector<std::vector<float>> gradients_of(nn::Module& model) {
  std::vector<std::vector<float>> all;
  for (const NamedTensor& parameter : model.named_parameters()) {
    const auto values = grad(parameter.tensor).span<float>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

TEST(PaddedBatches, WeightedByLabelsGiveTheGradientsOfAllTextsTogether) {
  manual_seed(4);
  Tagger alone;
  std::vector<data::Sample> all = texts_of(0);
  for (const data::Sample& text : texts_of(1)) all.push_back(text);
  const data::Batch whole = padded(all);
  EXPECT_EQ(nn::count_labels(whole.targets()), 9);
  nn::cross_entropy(alone(whole.inputs()), whole.targets()).backward();
  const auto expected = gradients_of(alone);
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    manual_seed(4);
    Tagger model;
    DistributedDataParallel ddp(model, group);
    const data::Batch batch = padded(texts_of(group->rank()));
    const std::int64_t count = nn::count_labels(batch.targets());
    EXPECT_EQ(count, group->rank() == 0 ? 6 : 3);
    ddp.set_weight(static_cast<double>(count));
    nn::cross_entropy(ddp(batch.inputs()), batch.targets()).backward();
    const auto actual = gradients_of(model);
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (std::size_t j = 0; j < expected[i].size(); ++j)
        EXPECT_NEAR(actual[i][j], expected[i][j], 1e-6F) << i << " " << j;
  }));
}

// If a rank's batch is only padding, its loss and gradients are 0, and the step continues.
TEST(PaddedBatches, OfOnlyPaddingAddNothing) {
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    manual_seed(4);
    Tagger model;
    DistributedDataParallel ddp(model, group);
    const data::Batch batch = padded(texts_of(0));
    const bool is_padding = group->rank() == 1;
    const Tensor labels =
        is_padding ? Tensor::from<std::int64_t>(std::vector<std::int64_t>(10, kIgnoreIndex), {2, 5}) : batch.targets();
    const Tensor loss = nn::cross_entropy(ddp(batch.inputs()), labels, {.reduction = Reduction::kMean});
    if (is_padding) {
      EXPECT_EQ(loss.item(), 0);
    }
    loss.backward();
    manual_seed(4);
    Tagger same;
    nn::cross_entropy(same(batch.inputs()), batch.targets()).backward();
    const auto half = gradients_of(same), actual = gradients_of(model);
    for (std::size_t i = 0; i < half.size(); ++i)
      for (std::size_t j = 0; j < half[i].size(); ++j) EXPECT_NEAR(actual[i][j], half[i][j] / 2, 1e-6F);
  }));
}

}  // namespace
}  // namespace lockstep::testing
