// Collectives whose results are known exactly.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/conformance/exact_data.h"

namespace lockstep::testing {

// Rank r's elements; `shift` distinguishes the calls.
inline std::vector<std::byte> data_of(int rank, int ranks, std::size_t count, DType dtype, std::size_t shift = 0) {
  std::vector<std::byte> data(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i)
    store(data.data(), i, dtype, value_at(rank, ranks, i + shift, dtype, ReduceOp::kSum));
  return data;
}

inline void check_all_reduce(ProcessGroup& group, std::size_t count, DType dtype) {
  std::vector<std::byte> data = data_of(group.rank(), group.world_size(), count, dtype), expected(data.size());
  for (std::size_t i = 0; i < count; ++i)
    store(expected.data(), i, dtype, expected_at(group.world_size(), i, dtype, ReduceOp::kSum));
  group.all_reduce(data.data(), count, dtype);
  EXPECT_EQ(first_difference(data.data(), expected.data(), count, dtype), -1)
      << "all_reduce, rank " << group.rank() << ", " << count;
}

inline void check_broadcast(ProcessGroup& group, std::size_t count, DType dtype, int root) {
  std::vector<std::byte> data = data_of(group.rank(), group.world_size(), count, dtype);
  const std::vector<std::byte> expected = data_of(root, group.world_size(), count, dtype);
  group.broadcast(data.data(), count, dtype, root);
  EXPECT_EQ(first_difference(data.data(), expected.data(), count, dtype), -1)
      << "broadcast, rank " << group.rank() << ", " << count;
}

inline void check_all_gather(ProcessGroup& group, std::size_t count, DType dtype) {
  const int ranks = group.world_size();
  const std::vector<std::byte> mine = data_of(group.rank(), ranks, count, dtype);
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(ranks)), expected;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<std::byte> part = data_of(rank, ranks, count, dtype);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  group.all_gather(mine.data(), all.data(), count, dtype);
  EXPECT_EQ(first_difference(all.data(), expected.data(), count * static_cast<std::size_t>(ranks), dtype), -1)
      << "all_gather, rank " << group.rank() << ", " << count;
}

// Different counts, types and roots, with sizes around the number of ranks and of several pieces.
inline void check_calls(ProcessGroup& group, std::size_t largest) {
  const auto n = static_cast<std::size_t>(group.world_size());
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, n - 1, n, n + 1, std::size_t{1237}, largest}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) check_all_reduce(group, count, dtype);
    check_broadcast(group, count, DType::kFloat32, static_cast<int>(count % n));
    check_all_gather(group, count, DType::kUInt8);
  }
  group.barrier();
}

}  // namespace lockstep::testing
