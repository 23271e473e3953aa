// The code of docs/data.md.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"
#include "tests/data/files_for_tests.h"

namespace ls = lockstep;

namespace {

TEST(DocExamples, SequencesOfDifferentLengths) {
  const ls::data::TestFile file(
      "{\"tokens\":[5,6,7],\"label\":1}\n{\"tokens\":[8],\"label\":0}\n{\"tokens\":[9,9],\"label\":1}\n");
  const std::string path = file.path();
  const ls::Place place;
  std::int64_t seen = 0, tokens_seen = 0;

  const ls::data::JsonLines documents(path, [](const nlohmann::json& record) {
    return ls::data::Sample{ls::data::int64_tensor(record.at("tokens")), ls::data::int64_tensor(record.at("label"))};
  });
  const ls::data::DistributedSampler sampler(documents.size(), place, {.shuffle = true, .seed = 1});
  ls::data::DataLoader loader(documents, sampler,
                              {.batch_size = 32, .num_workers = 2, .collate = ls::data::pad_collate()});
  for (auto& [tokens, labels] : loader) {  // (N, longest of the batch) and (N)
    seen += labels.count();
    tokens_seen += tokens.count();
  }

  EXPECT_EQ(seen, 3);
  EXPECT_EQ(tokens_seen, 9);
}

TEST(DocExamples, ALabelForEachToken) {
  const ls::data::TestFile file(
      "{\"tokens\":[5,6,7],\"labels\":[1,0,1]}\n{\"tokens\":[8],\"labels\":[0]}\n{\"tokens\":[9,9],\"labels\":[1,1]}"
      "\n");
  const std::string path = file.path();
  const ls::Place place;
  std::int64_t labels_seen = 0;
  ls::nn::Sequential net;
  net.append<ls::nn::Embedding>(10, 4);
  net.append<ls::nn::Linear>(4, 2);
  ls::optim::SGD sgd(net.named_parameters(), {.lr = 0.1F});

  const ls::data::JsonLines texts(path, [](const nlohmann::json& record) {
    return ls::data::Sample{ls::data::int64_tensor(record.at("tokens")), ls::data::int64_tensor(record.at("labels"))};
  });
  const ls::data::DistributedSampler sampler(texts.size(), place, {.shuffle = true, .seed = 1});
  const auto padded = ls::data::pad_collate({.target_value = ls::kIgnoreIndex});  // tokens end in 0, labels in -100
  for (auto& [tokens, labels] : ls::data::DataLoader(texts, sampler, {.batch_size = 8, .collate = padded})) {
    sgd.zero_grad();
    // Logits (N, T, K), labels (N, T): the mean over the labels that are not -100.
    ls::nn::cross_entropy(net(tokens), labels).backward();
    sgd.step();
    labels_seen += ls::nn::count_labels(labels);
  }
  ls::train::Accuracy accuracy;
  ls::train::MeanCrossEntropy loss;
  ls::train::evaluate(net, texts, {&accuracy, &loss}, {.batch_size = 8, .collate = padded});  // padding is no sample

  EXPECT_EQ(labels_seen, 6);
  EXPECT_EQ(accuracy.samples(), 6);
  EXPECT_EQ(loss.samples(), 6);
}

TEST(DocExamples, WeightsAndLengths) {
  const ls::data::TestFile file(
      "{\"tokens\":[5,6,7],\"label\":1}\n{\"tokens\":[8],\"label\":0}\n{\"tokens\":[9,9],\"label\":1}\n");
  const ls::data::JsonLines documents(file.path(), [](const nlohmann::json& record) {
    return ls::data::Sample{ls::data::int64_tensor(record.at("tokens")), ls::data::int64_tensor(record.at("label"))};
  });
  const std::vector<std::int64_t> labels = {1, 0, 1};
  const ls::Place place;
  std::int64_t seen = 0;

  const std::vector<double> weights = ls::data::balancing_weights(labels);  // draws all classes equally often
  const ls::data::WeightedSampler balanced(documents.size(), weights, place,
                                           {.samples = 3, .replacement = true, .seed = 1});

  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < documents.size(); ++i) lengths.push_back(documents.get(i, 0)[0].count());
  const ls::data::LengthBucketSampler bucketed(documents.size(), lengths, place,
                                               {.batch_size = 64, .max_tokens = 4096, .seed = 1});
  ls::data::DataLoader loader(documents, bucketed,
                              {.num_workers = 2, .collate = ls::data::pad_collate()});  // its batches
  for (auto& [tokens, targets] : loader) seen += targets.count();

  EXPECT_EQ(balanced.indices().size(), 3U);
  EXPECT_EQ(seen, 3);
}

// Trains up to step `last`, from where the run before has stopped; returns how many samples it took.
std::int64_t train(const std::string& folder, const ls::data::Dataset& set, std::int64_t last) {
  const ls::Place place;
  std::int64_t seen = 0;
  ls::nn::Linear net(2, 1);
  ls::optim::SGD sgd(net.named_parameters(), {.lr = 0.01f});

  ls::data::DistributedSampler sampler(set, place, {.seed = 1});
  ls::data::DataLoader loader(set, sampler, {.batch_size = 4, .num_workers = 2});
  ls::train::CheckpointParts parts{.model = net, .optimizer = sgd, .sampler = sampler, .loader = loader};
  if (const auto saved = ls::train::load_checkpoint(folder, parts)) parts.step = saved->step;
  for (; parts.step < last; sampler.set_epoch(sampler.epoch() + 1))
    for (auto& [inputs, targets] : loader) {  // in the first pass: what the earlier run had not taken
      sgd.zero_grad();
      ls::nn::mse_loss(net(inputs), targets).backward();
      sgd.step();
      seen += targets.count();
      if (++parts.step % 4 == 0) ls::train::save_checkpoint(folder, parts);
      if (parts.step == last) break;
    }

  return seen;
}

TEST(DocExamples, AnEpochInTwoRuns) {
  const std::string folder = lockstep::testing::temporary("data-doc-checkpoint");
  const ls::data::TensorDataset set({ls::Tensor::full({24, 2}, 1), ls::Tensor::full({24, 1}, 1)});
  EXPECT_EQ(train(folder, set, 4), 16) << "of 24 samples";
  EXPECT_EQ(train(folder, set, 8), 8 + 8) << "the rest of the first epoch, and two steps of the second";
  std::filesystem::remove_all(folder);
}

TEST(DocExamples, SetsOfSets) {
  const ls::Tensor inputs = ls::Tensor::full({10, 4}, 1), labels = ls::Tensor::zeros({10}, ls::DType::kInt64);

  const ls::data::TensorDataset all({inputs, labels});
  const auto parts = ls::data::random_split(all, {8, 2}, /*seed=*/1);  // for training and validation
  const auto train = ls::data::map(
      ls::data::cache(parts[0]),
      [](ls::data::Sample sample, ls::Philox& random) {
        for (float& x : sample[0].span<float>()) x += 0.1f * random.normal();  // drawn from (seed, epoch, index)
        return sample;
      },
      /*seed=*/1);

  EXPECT_EQ(train.size(), 8);
  EXPECT_NE(train.get(0, 0)[0].span<float>()[0], train.get(0, 1)[0].span<float>()[0]);
}

TEST(DocExamples, Pipelines) {
  const ls::data::TensorDataset all({ls::Tensor::full({10, 4}, 1), ls::Tensor::zeros({10}, ls::DType::kInt64)});
  const ls::Place place;
  std::int64_t seen = 0;

  const auto chain = ls::data::Pipeline(all).shuffle(1000, /*seed=*/1).batch(4).prefetch(2).cache();
  for (std::int64_t epoch = 0; epoch < 2; ++epoch)
    for (auto batches = chain.epoch(epoch, {.place = place}); auto& [x, y] : batches) seen += x.shape()[0];

  EXPECT_EQ(seen, 20);
}

}  // namespace
