// The code of docs/data.md.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"
#include "tests/data/files_for_tests.h"

namespace ls = lockstep;

namespace {

TEST(DocExamples, SequencesOfDifferentLengths) {
  const ls::data::TestFile file("{\"tokens\":[5,6,7],\"label\":1}\n{\"tokens\":[8],\"label\":0}\n{\"tokens\":[9,9],\"label\":1}\n");
  const std::string path = file.path();
  const ls::Place place;
  std::int64_t seen = 0, tokens_seen = 0;

  const ls::data::JsonLines documents(path, [](const nlohmann::json& record) {
    return ls::data::Sample{ls::data::int64_tensor(record.at("tokens")), ls::data::int64_tensor(record.at("label"))};
  });
  const ls::data::DistributedSampler sampler(documents.size(), place, {.shuffle = true, .seed = 1});
  ls::data::DataLoader loader(documents, sampler, {.batch_size = 32, .num_workers = 2, .collate = ls::data::pad_collate()});
  for (auto& [tokens, labels] : loader) {  // (N, longest of the batch) and (N)
    seen += labels.count();
    tokens_seen += tokens.count();
  }

  EXPECT_EQ(seen, 3);
  EXPECT_EQ(tokens_seen, 9);
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

}  // namespace
