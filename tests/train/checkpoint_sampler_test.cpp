// The position of a sampler in checkpoints: in the middle of an epoch, with another number of ranks, and with ranks
// that disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/combine.h"
#include "lockstep/data/weighted_sampler.h"
#include "lockstep/train/restore_sampler.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::Folder;
using ::testing::HasSubstr;

constexpr std::int64_t kSize = 48;

// The samples 0, 1, ...
data::TensorDataset numbers() {
  std::vector<std::int64_t> values(kSize);
  std::iota(values.begin(), values.end(), 0);
  return data::TensorDataset({Tensor::from(std::span<const std::int64_t>(values), {kSize})});
}

// Two ranks save in the middle of an epoch how far their loaders are; four ranks continue with the rest.
TEST(CheckpointSampler, OtherRanksGoOnInTheMiddleOfAnEpoch) {
  const Folder folder;
  const data::TensorDataset set = numbers();
  std::mutex mutex;
  std::vector<std::int64_t> seen;
  const auto train = [&](const std::shared_ptr<ProcessGroup>& group, std::int64_t steps) {
    manual_seed(1);
    CheckpointNet net;
    data::DistributedSampler sampler(kSize, group->place(), {.seed = 3});
    data::DataLoader loader(set, sampler, {.batch_size = 3, .prefetch = 4, .num_workers = 2});
    CheckpointParts parts{.model = net, .sampler = sampler, .loader = loader, .group = group};
    if (const auto state = load_checkpoint(folder.path(), parts)) parts.step = state->step;
    for (auto& batch : loader) {
      {
        const std::lock_guard lock(mutex);
        for (const std::int64_t number : batch[0].span<std::int64_t>()) seen.push_back(number);
      }
      ++parts.step;
      if (--steps == 0) break;
    }
    save_checkpoint(folder.path(), parts);
    return parts.step;
  };
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](auto group) { EXPECT_EQ(train(group, 2), 2); }));
  EXPECT_EQ(seen.size(), 12u);
  testing::expect_all_well(testing::run_ranks(4, "shm", [&](auto group) { EXPECT_EQ(train(group, 1), 3); }));
  testing::expect_all_well(testing::run_ranks(1, "shm", [&](auto group) { EXPECT_EQ(train(group, -1), 11); }));
  std::sort(seen.begin(), seen.end());
  std::vector<std::int64_t> all(kSize);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(CheckpointSampler, OfAnotherSamplerIsRefusedAndChangesNothing) {
  const Folder folder;
  CheckpointTrainee run(1), victim(2);
  save_checkpoint(folder.path(), run.parts());
  const auto refusal_of = [&](data::Sampler& sampler) {
    const std::string before = victim.hash();
    CheckpointParts parts = victim.parts();
    parts.sampler = sampler;
    const data::SamplerState state = sampler.state();
    const std::string message = message_of([&] { load_checkpoint(folder.path(), parts); });
    EXPECT_EQ(sampler.state(), state);
    EXPECT_EQ(victim.hash(), before);
    return message;
  };
  data::DistributedSampler larger(21, {}), in_order(20, {}, {.shuffle = false});
  const std::vector<double> weights(20, 1);
  data::WeightedSampler weighted(20, weights, {});
  EXPECT_THAT(refusal_of(larger), AllOf(HasSubstr("state.json: DistributedSampler: rank 0"),
                                        HasSubstr("data set has 20 samples, this sampler's has 21")));
  EXPECT_THAT(refusal_of(in_order),
              HasSubstr("belongs to DistributedSampler(shuffle true, remainder pad), but this sampler "
                        "is DistributedSampler(shuffle false"));
  EXPECT_THAT(refusal_of(weighted), HasSubstr("belongs to DistributedSampler"));
}

// Version 0.1 saved fewer fields, and counted the samples that padding repeats.
TEST(CheckpointSampler, OfVersion01ComesBack) {
  const Folder folder;
  CheckpointTrainee run(1);
  data::DistributedSampler sampler(10, {0, 4, 0, 4}, {.seed = 5});
  CheckpointParts parts = run.parts();
  parts.sampler = sampler;
  testing::forge(folder, save_checkpoint(folder.path(), parts), [](nlohmann::json& state, nlohmann::json&) {
    state["sampler"] = {{"seed", 6}, {"epoch", 3}, {"consumed", 12}};
  });
  ASSERT_TRUE(load_checkpoint(folder.path(), parts).has_value());
  EXPECT_EQ(sampler.state().seed, 6u);
  EXPECT_EQ(sampler.epoch(), 3);
  EXPECT_EQ(sampler.remaining(), 0);
}

TEST(CheckpointSampler, RanksWithOtherSamplersAreToldBeforeTheyLoad) {
  const Folder folder;
  CheckpointTrainee run(1);
  save_checkpoint(folder.path(), run.parts());
  const auto failures = testing::run_ranks(3, "shm", [&](auto group) {
    CheckpointTrainee mine(2);
    data::DistributedSampler sampler(
        20, {}, {.remainder = group->rank() == 1 ? data::Remainder::kDrop : data::Remainder::kPad});
    CheckpointParts parts = mine.parts();
    parts.sampler = sampler;
    parts.group = group;
    load_checkpoint(folder.path(), parts);
  });
  EXPECT_THAT(
      failures,
      Each(AllOf(
          HasSubstr("rank 1 has a sampler of 20 samples for 1 ranks: DistributedSampler(shuffle true, remainder drop)"),
          HasSubstr(
              "rank 0 has a sampler of 20 samples for 1 ranks: DistributedSampler(shuffle true, remainder pad)"))));
}

// The same number of samples, but different ones: a run would see some of them twice, or never.
TEST(CheckpointSampler, OfAnotherDataSetOfTheSameSizeIsRefusedOnAllRanks) {
  const Folder folder;
  const auto set_of = [](std::int64_t first) {
    std::vector<std::int64_t> values(kSize);
    std::iota(values.begin(), values.end(), first);
    return data::TensorDataset({Tensor::from(std::span<const std::int64_t>(values), {kSize})});
  };
  const data::TensorDataset saved = set_of(0), other = set_of(7);
  const auto load = [&](const std::shared_ptr<ProcessGroup>& group, const data::Dataset& set) {
    CheckpointNet net;
    data::DistributedSampler sampler(set, group->place());
    const data::SamplerState before = sampler.state();
    const std::string message =
        message_of([&] { load_checkpoint(folder.path(), {.model = net, .sampler = sampler, .group = group}); });
    EXPECT_EQ(message == "nothing was thrown", sampler.state() != before);
    return message;
  };
  std::vector<std::string> of_all(3), of_one(3);
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](auto group) {
    CheckpointNet net;
    data::DistributedSampler sampler(saved, group->place());
    sampler.advance(12);
    save_checkpoint(folder.path(), {.model = net, .sampler = sampler, .group = group});
    group->barrier();
    const auto rank = static_cast<std::size_t>(group->rank());
    of_all[rank] = load(group, other);
    of_one[rank] = load(group, rank == 2 ? other : saved);
    EXPECT_EQ(load(group, saved), "nothing was thrown");
  }));
  EXPECT_THAT(of_all, Each(HasSubstr("belongs to another data set of 48 samples, with fingerprint " +
                                     data::fingerprint_of(saved))));
  EXPECT_THAT(of_one,
              Each(AllOf(HasSubstr("gave different parts"), HasSubstr("fingerprint " + data::fingerprint_of(other)))));
}

TEST(RestoreSampler, AllRanksTakeAStateOrNone) {
  const auto restore = [](int odd_rank, data::SamplerState (*make_odd)(data::SamplerState)) {
    return testing::run_ranks(3, "threads", [=](auto group) {
      data::DistributedSampler sampler(20, group->place(), {.seed = 1}), saved(20, {}, {.seed = 2});
      saved.set_epoch(4);
      saved.advance(8);
      const data::SamplerState before = sampler.state();
      const data::SamplerState state =
          odd_rank == -1 || odd_rank == group->rank() ? make_odd(saved.state()) : saved.state();
      try {
        restore_sampler(sampler, state, group);
      } catch (const Error&) {
        EXPECT_EQ(sampler.state(), before) << "rank " << group->rank();
        throw;
      }
      EXPECT_EQ(sampler.state(), saved.state());
    });
  };
  using State = data::SamplerState;
  testing::expect_all_well(restore(-1, [](State state) { return state; }));
  const auto later = [](State state) { return ++state.consumed, state; };
  const auto of_another_set = [](State state) { return ++state.set_size, state; };
  EXPECT_THAT(restore(2, later), Each(AllOf(HasSubstr("restore_sampler: the ranks gave different states or samplers"),
                                            HasSubstr("rank 2 has the state {\"consumed\":9,"),
                                            HasSubstr("rank 0 has the state {\"consumed\":8,"))));
  EXPECT_THAT(restore(0, of_another_set), Each(HasSubstr("rank 1 has the state")));
  EXPECT_THAT(restore(-1, of_another_set), Each(AllOf(HasSubstr("restore_sampler: DistributedSampler: rank "),
                                                      HasSubstr("data set has 21 samples, this sampler's has 20"))));
}

TEST(RestoreSampler, RanksWithOtherSamplersAreTold) {
  const auto failures = testing::run_ranks(2, "threads", [](auto group) {
    const std::vector<double> weights = {1, 2, group->rank() == 1 ? 3.5 : 3};
    data::WeightedSampler sampler(3, weights, group->place());
    restore_sampler(sampler, sampler.state(), group);
  });
  EXPECT_THAT(failures, Each(AllOf(HasSubstr("different states or samplers"), HasSubstr("WeightedSampler(samples 3"))));
}

TEST(RestoreSampler, NeedsNoGroup) {
  data::DistributedSampler sampler(20, {}), saved(20, {});
  saved.advance(5);
  restore_sampler(sampler, saved.state());
  EXPECT_EQ(sampler.state(), saved.state());
}

}  // namespace
}  // namespace lockstep::train
