// The table of paths: ranks use its values, and an invalid value is refused by name. Also sums in tree order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "lockstep/core/buffer.h"
#include "src/comm/host/shm/tuning.h"
#include "tests/conformance/ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr host::Tuning kUnusual{
    .line_bytes = 16, .flat_bytes = 3000, .tile_bytes = 65536, .reduce_order = host::ReduceOrder::kTree};

TEST(TuningTable, ComesBackFromJsonAsItWas) {
  const host::TuningTable table =
      host::parse_tuning(host::to_json({kUnusual, {.cores = 96, .ranks = 8}}), "table.json");
  EXPECT_EQ(table.tuning, kUnusual);
  EXPECT_EQ(table.made_on, (host::TuningOrigin{.cores = 96, .ranks = 8}));
}

TEST(TuningTable, WhatIsMissingIsTheDefault) {
  EXPECT_EQ(host::parse_tuning("{}", "table.json", kUnusual).tuning, kUnusual);
  EXPECT_EQ(host::parse_tuning(R"({"flat_bytes": 7})", "table.json").tuning.flat_bytes, 7u);
}

TEST(TuningTable, WhatCannotBeUsedIsRefusedByFileAndKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"flat_byts": 512})", "unknown key \"flat_byts\""},
      {R"({"made_on": {"cpu": 3}})", "\"made_on\": unknown key \"cpu\""},
      {R"({"made_on": 3})", "expected a JSON object"},
      {R"({"flat_bytes": "512"})", "\"flat_bytes\" is \"512\"; expected an integer"},
      {R"({"flat_bytes": 1.5})", "\"flat_bytes\" is 1.5"},
      {R"({"flat_bytes": -1})", "\"flat_bytes\" is -1; it must be in 0..8192"},
      {R"({"flat_bytes": 8193})", "it must be in 0..8192"},
      {R"({"line_bytes": 49})", "\"line_bytes\" is 49; it must be in 0..48"},
      {R"({"tile_bytes": 100000})", "be a multiple of 4096"},
      {R"({"reduce_order": 1})", "\"reduce_order\" is 1"},
      {R"({"reduce_order": "random"})", "expected one of rank, tree"},
      {R"([1])", "expected a JSON object"},
      {R"({"flat_bytes": )", "is not JSON"},
  };
  for (const auto& [json, reason] : cases) {
    const Outcome outcome = outcome_of([json = json] { host::parse_tuning(json, "table.json"); });
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("'table.json'"), HasSubstr(reason))) << json;
  }
}

TEST(TuningTable, OfAnEarlierVersionIsTakenAndItsKeysAreNamed) {
  ::testing::internal::CaptureStderr();
  const host::TuningTable table = host::parse_tuning(
      R"({"flat_bytes": 7, "plain_path": "vm", "vm_from_bytes": 262144, "vm_piece_bytes": 131072})", "table.json");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(table.tuning, host::Tuning{.flat_bytes = 7});
  EXPECT_THAT(log,
              AllOf(HasSubstr("'table.json'"), HasSubstr("\"plain_path\", \"vm_from_bytes\", \"vm_piece_bytes\"")));
}

// Rank 0 reads the file; the others must not wait for a table that will not come.
TEST(TuningTable, AFileThatRankZeroCannotUseIsAnErrorOnAllRanks) {
  const TuningFile file(R"({"reduce_order": "pigeon"})");
  for (const Wire wire : {Wire::kMemfd, Wire::kTcp})
    for (const Outcome& outcome : outcomes_of_threads({.wire = wire, .ranks = 3}, [](Rank&) {}))
      EXPECT_THAT(outcome.text, AllOf(HasSubstr(file.path()), HasSubstr("\"reduce_order\"")));
}

TEST(TuningTable, AnUnknownOrderIsRefusedOnAllRanks) {
  setenv(env::kReduceOrder, "random", 1);
  const auto outcomes = outcomes_of_threads({.wire = Wire::kMemfd, .ranks = 2}, [](Rank&) {});
  unsetenv(env::kReduceOrder);
  for (const Outcome& outcome : outcomes)
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("order of sums 'random'"), HasSubstr("LOCKSTEP_REDUCE_ORDER is one of rank, tree")));
}

// -- the tree

// By its definition: neighbours first, then neighbouring pairs, ...
float tree_sum(std::vector<float> values) {
  for (std::size_t stride = 1; stride < values.size(); stride *= 2)
    for (std::size_t i = 0; i + stride < values.size(); i += 2 * stride) values[i] += values[i + stride];
  return values[0];
}

std::vector<std::vector<float>> random_inputs(int ranks, std::size_t count) {
  std::vector<std::vector<float>> inputs(static_cast<std::size_t>(ranks), std::vector<float>(count));
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    std::mt19937 random(static_cast<unsigned>(r + 1));
    std::normal_distribution<float> normal;
    for (float& value : inputs[r]) value = normal(random);
  }
  return inputs;
}

std::vector<float> tree_sums(const std::vector<std::vector<float>>& inputs, float scale) {
  std::vector<float> sums(inputs[0].size()), column(inputs.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    for (std::size_t r = 0; r < inputs.size(); ++r) column[r] = inputs[r][i];
    sums[i] = tree_sum(column) * scale;
  }
  return sums;
}

TEST(TreeOrder, KernelAddsNeighboursThenPairs) {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    const auto inputs = random_inputs(ranks, 1000);
    const auto expected = tree_sums(inputs, 1.0f);
    std::vector<const std::byte*> in;
    for (const auto& input : inputs) in.push_back(reinterpret_cast<const std::byte*>(input.data()));
    std::vector<float> sums(1000), other(1000);
    std::byte* const out[] = {reinterpret_cast<std::byte*>(sums.data()), reinterpret_cast<std::byte*>(other.data())};
    host::reduce({DType::kFloat32, ReduceOp::kSum, ranks, 2, in.data(), out, 1000, host::ReduceOrder::kTree});
    EXPECT_EQ(std::memcmp(sums.data(), expected.data(), 4000), 0) << ranks << " inputs";
    EXPECT_EQ(sums, other);
  }
}

// The order must make a difference where it can; otherwise the tests above and below prove nothing.
TEST(TreeOrder, DiffersFromTheRanksOrderFromFourOn) {
  const auto inputs = random_inputs(4, 1000);
  std::vector<float> in_rank_order = inputs[0];
  for (std::size_t r = 1; r < 4; ++r)
    for (std::size_t i = 0; i < 1000; ++i) in_rank_order[i] += inputs[r][i];
  EXPECT_NE(tree_sums(inputs, 1.0f), in_rank_order);
}

TEST(TreeOrder, EveryWirePathAndSplitSumsByTheTree) {
  constexpr std::size_t kCount = 150001;
  for (const Wire wire : {Wire::kThreads, Wire::kMemfd, Wire::kTcp})
    for (const int ranks : {4, 7}) {
      const auto inputs = random_inputs(ranks, kCount);
      const auto expected = tree_sums(inputs, 1.0f / static_cast<float>(ranks));
      run_threads({.wire = wire, .ranks = ranks, .tuning = host::Tuning{.reduce_order = host::ReduceOrder::kTree}},
                  [&](Rank& rank) {
                    const auto me = static_cast<std::size_t>(rank.rank());
                    const Buffer registered = rank.backend().allocate(kCount * 4);
                    std::vector<float> plain(kCount);
                    for (float* data : {reinterpret_cast<float*>(registered.data()), plain.data()})
                      for (const std::size_t piece : {std::size_t{7}, std::size_t{1001}, kCount}) {
                        std::copy(inputs[me].begin(), inputs[me].end(), data);
                        const std::size_t end = piece == 7 ? 70 : kCount;
                        for (std::size_t at = 0; at < end; at += piece)
                          rank.all_reduce(data + at, std::min(piece, end - at), DType::kFloat32, ReduceOp::kAvg);
                        EXPECT_EQ(std::memcmp(data, expected.data(), end * 4), 0)
                            << name_of(wire) << " rank " << me << " in pieces of " << piece;
                      }
                  });
    }
}

// One table after the other: the sums do not depend on it.
TEST(TuningTable, EveryTableGivesTheSameBits) {
  constexpr std::size_t kCount = 60001;
  const auto inputs = random_inputs(3, kCount);
  std::vector<float> expected = inputs[0];
  for (std::size_t r = 1; r < 3; ++r)
    for (std::size_t i = 0; i < kCount; ++i) expected[i] += inputs[r][i];
  for (const host::Tuning& tuning :
       {host::Tuning{.line_bytes = 0, .flat_bytes = 0}, host::Tuning{.flat_bytes = host::kSlotBytes},
        host::Tuning{.tile_bytes = 65536}, kUnusual})
    for (const Wire wire : {Wire::kThreads, Wire::kMemfd})
      run_threads({.wire = wire, .ranks = 3, .tuning = tuning}, [&](Rank& rank) {
        const auto& mine = inputs[static_cast<std::size_t>(rank.rank())];
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{3}, std::size_t{12}, std::size_t{500}, std::size_t{2048}, kCount}) {
          std::vector<float> data(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(count));
          rank.all_reduce(data.data(), count);
          EXPECT_TRUE(count == 0 || std::memcmp(data.data(), expected.data(), count * 4) == 0) << count << " values";
        }
      });
}

}  // namespace
}  // namespace lockstep::testing
