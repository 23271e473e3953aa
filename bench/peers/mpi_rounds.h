// Times one all-reduce on ranks that MPI has started, as bench/all_reduce measures ours: fill, barrier, time one float
// sum in place, take the slowest rank's time. Rank 0 prints one JSON object per size, with the same keys.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace peers {

inline std::size_t rounds_for(std::size_t bytes) {
  return std::clamp<std::size_t>((std::size_t{64} << 20) / std::max<std::size_t>(bytes, 4096), 7, 2000);
}

// Seconds of the slowest rank. `all_reduce` is called with the vector and returns when the sum is in it.
template <typename AllReduce> double time_one(std::vector<float>& values, AllReduce& all_reduce) {
  std::fill(values.begin(), values.end(), 1.0f);
  MPI_Barrier(MPI_COMM_WORLD);
  double seconds = -MPI_Wtime();
  all_reduce(values);
  seconds += MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

inline void report(const std::string& peer, std::vector<double> seconds, std::size_t bytes, int ranks) {
  std::sort(seconds.begin(), seconds.end());
  const double p50 = seconds[seconds.size() / 2], p99 = seconds[seconds.size() * 99 / 100];
  const double algbw = static_cast<double>(bytes) / p50 / 1e9;
  std::printf(
      R"({"peer": "%s", "ranks": %d, "bytes": %zu, "p50_us": %.2f, "p99_us": %.2f, "algbw_gbps": %.3f, "busbw_gbps": %.3f})"
      "\n",
      peer.c_str(), ranks, bytes, p50 * 1e6, p99 * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks);
  std::fflush(stdout);
}

// Between MPI_Init and MPI_Finalize. Ends the job if a sum is wrong.
template <typename AllReduce>
void time_sizes(const std::string& peer, const std::vector<std::string>& sizes, AllReduce all_reduce) {
  constexpr int kWarmUp = 3;
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (const std::string& size : sizes) {
    const std::size_t bytes = std::stoull(size);
    std::vector<float> values(std::max<std::size_t>(1, bytes / sizeof(float)));
    for (int i = 0; i < kWarmUp; ++i) time_one(values, all_reduce);
    std::vector<double> seconds(rounds_for(bytes));
    for (double& each : seconds) each = time_one(values, all_reduce);
    const auto sum = static_cast<float>(ranks);
    if (std::any_of(values.begin(), values.end(), [sum](float value) { return value != sum; })) {
      std::fprintf(stderr, "%s: rank %d: wrong sums of %zu bytes, expected %g everywhere\n", peer.c_str(), rank, bytes,
                   static_cast<double>(sum));
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0) report(peer, seconds, bytes, ranks);
  }
}

}  // namespace peers
