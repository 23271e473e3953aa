// The benchmarks' checks: wrong results are counted, and the line fit is correct.
#include <gtest/gtest.h>

#include <cstring>

#include "bench/lib/fit.h"
#include "bench/lib/result_report.h"
#include "bench/lib/test_data.h"

namespace lockstep::bench {
namespace {

struct Rank {
  std::vector<std::byte> send, receive;
  Memory memory() { return {send.data(), receive.data()}; }
};

// A world in which the test plays the network.
class World {
 public:
  World(const char* name, int ranks, std::size_t bytes, DType dtype, bool in_place, ReduceOp op = ReduceOp::kSum)
      : kind_(find_collective(name)),
        layout_(layout_of(kind_, bytes, dtype, ranks, in_place)),
        ranks_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_[static_cast<std::size_t>(rank)] = {std::vector<std::byte>(layout_.message_bytes()),
                                                std::vector<std::byte>(layout_.message_bytes())};
      const Call call{nullptr, nullptr, layout_.count, dtype, op, 1, premul_factor(rank)};
      data_.emplace_back(kind_, layout_, call, rank);
      data_.back().fill(ranks_[static_cast<std::size_t>(rank)].memory(), Values::kExact);
    }
  }
  Memory ends(int rank) { return ends_of(layout_, ranks_[static_cast<std::size_t>(rank)].memory(), rank); }
  std::size_t wrong(int rank, bool full = true) {
    return data_[static_cast<std::size_t>(rank)].count_wrong(ranks_[static_cast<std::size_t>(rank)].memory(), full);
  }
  const MessageLayout& layout() const { return layout_; }

 private:
  const CollectiveKind& kind_;
  MessageLayout layout_;
  std::vector<Rank> ranks_;
  std::vector<TestData> data_;
};

TEST(BenchData, BeforeTheCallEveryElementIsWrong) {
  for (const char* name : {"reduce_scatter", "all_gather", "all_to_all", "scatter"}) {
    World world(name, 3, 36'000, DType::kInt32, false);
    const auto elements = static_cast<std::size_t>(world.layout().receive_parts) * world.layout().count;
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(world.wrong(rank), elements) << name;
  }
}

TEST(BenchData, SumsByHandAreRightAndOneWrongElementIsCounted) {
  for (const bool in_place : {true, false}) {
    World world("all_reduce", 2, 40'000, DType::kFloat64, in_place);
    std::vector<double> sums(world.layout().count);
    for (int rank = 0; rank < 2; ++rank)
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] += reinterpret_cast<const double*>(world.ends(rank).send)[i];
    for (int rank = 0; rank < 2; ++rank)
      std::memcpy(world.ends(rank).receive, sums.data(), sums.size() * sizeof(double));
    EXPECT_EQ(world.wrong(0), 0u);
    auto* result = reinterpret_cast<double*>(world.ends(1).receive);
    result[2500] += 1;  // neither in the first nor in the last block
    EXPECT_EQ(world.wrong(1), 1u);
    EXPECT_EQ(world.wrong(1, false), 0u) << "the light check reads only the ends";
    result[sums.size() - 1] += 1;
    EXPECT_EQ(world.wrong(1), 2u);
    EXPECT_EQ(world.wrong(1, false), 1u);
  }
}

TEST(BenchData, AnExchangeByHandIsRightAndSwappedPartsAreWrong) {
  for (const char* name : {"all_to_all", "all_gather", "gather", "scatter"}) {
    World world(name, 3, 30'000, DType::kInt8, false);
    const std::size_t part = world.layout().part_bytes;
    const auto parts = static_cast<std::size_t>(world.layout().receive_parts);
    for (int rank = 0; rank < 3; ++rank)
      for (std::size_t p = 0; p < parts; ++p) {
        const int sender = parts > 1 ? static_cast<int>(p) : 1;  // the root
        const std::size_t offset = world.layout().send_parts > 1 ? static_cast<std::size_t>(rank) * part : 0;
        std::memcpy(world.ends(rank).receive + p * part, world.ends(sender).send + offset, part);
      }
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(world.wrong(rank), 0u) << name;
    if (parts == 1) continue;
    std::vector<std::byte> kept(world.ends(1).receive, world.ends(1).receive + part);
    std::memcpy(world.ends(1).receive, world.ends(1).receive + part, part);
    std::memcpy(world.ends(1).receive + part, kept.data(), part);
    EXPECT_GT(world.wrong(1), part) << name;
  }
}

TEST(BenchData, PlacesAreTheGroupsConvention) {
  const MessageLayout gather = layout_of(find_collective("all_gather"), 1000, DType::kInt64, 3, true);
  EXPECT_EQ(gather.count, 41u);  // 1000 / 3 / 8
  EXPECT_EQ(gather.message_bytes(), 984u);
  std::byte memory[1000];
  const Memory ends = ends_of(gather, {nullptr, memory}, 2);
  EXPECT_EQ(ends.receive, memory);
  EXPECT_EQ(ends.send, memory + 2 * 328);
  EXPECT_EQ(layout_of(find_collective("scatter"), 4, DType::kFloat32, 3, false).message_bytes(), 12u)
      << "at least one element for each";
}

TEST(BenchFit, FindsTheLine) {
  std::vector<Point> points;
  for (std::size_t size = 4; size < 100'000'000; size *= 4) {
    const auto bytes = static_cast<double>(size);
    points.push_back({bytes, 2.5 + bytes / 8e3});  // 8 GB/s are 8e3 bytes in 1 us
  }
  const auto fit = fit_line(points);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->alpha_us, 2.5, 1e-6);
  EXPECT_NEAR(fit->gb_per_s, 8, 1e-6);
  EXPECT_NEAR(fit->worst_percent, 0, 1e-6);
  points.back().us *= 2;
  EXPECT_NEAR(fit_line(points)->alpha_us, 2.5, 0.2) << "relative weights: a large message does not hide the latency";
  EXPECT_GT(fit_line(points)->worst_percent, 10);
}

TEST(BenchFit, ALatencyIsNeverNegative) {
  const auto fit = fit_line({{1e6, 100}, {2e6, 210}, {4e6, 430}});
  ASSERT_TRUE(fit);
  EXPECT_EQ(fit->alpha_us, 0);
  EXPECT_NEAR(fit->gb_per_s, 9.6, 0.3);
}

TEST(BenchFit, NoLineWithoutTwoSizesOrWhenTimeFalls) {
  EXPECT_FALSE(fit_line({}));
  EXPECT_FALSE(fit_line({{1024, 5}}));
  EXPECT_FALSE(fit_line({{1024, 5}, {1024, 6}}));
  EXPECT_FALSE(fit_line({{1024, 6}, {4096, 5}}));
}

TEST(BenchFit, StandsInTheResultsUnderTheNamesThatSimulateReads) {
  Settings settings;
  settings.measure.kind = &find_collective("all_reduce");
  settings.json = true;
  ResultReport report(settings, 2, "");
  for (const std::size_t bytes : {4UL, 4096UL, 4194304UL}) {
    Row row;
    row.layout = layout_of(*settings.measure.kind, bytes, DType::kFloat32, 2, true);
    row.p50 = 2.5 + static_cast<double>(bytes) / 8e3;
    report.add(row);
  }
  EXPECT_EQ(report.summary()["fit"]["alpha_us"], 2.5);
  EXPECT_EQ(report.summary()["fit"]["gbps"], 8);
  EXPECT_EQ(settings_as_json(settings)["collective"], "all_reduce");
  EXPECT_EQ(settings_as_json(settings)["ranks"], 2);
}

}  // namespace
}  // namespace lockstep::bench
