// MPI_Allreduce by message size, measured as bench/all_reduce measures ours: fill, barrier, time one float sum in
// place, take the slowest rank's time. Rank 0 prints one JSON object per size, with the same keys.
//
//   mpirun -n 2 all_reduce_mpi 4 1024 26214400
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

std::size_t rounds_for(std::size_t bytes) {
  return std::clamp<std::size_t>((std::size_t{64} << 20) / std::max<std::size_t>(bytes, 4096), 7, 2000);
}

double time_one(std::vector<float>& values) {
  std::fill(values.begin(), values.end(), 1.0f);
  MPI_Barrier(MPI_COMM_WORLD);
  double seconds = -MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  seconds += MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

void report(std::vector<double> seconds, std::size_t bytes, int ranks) {
  std::sort(seconds.begin(), seconds.end());
  const double p50 = seconds[seconds.size() / 2], p99 = seconds[seconds.size() * 99 / 100];
  const double algbw = static_cast<double>(bytes) / p50 / 1e9;
  std::printf(
      R"({"peer": "openmpi", "ranks": %d, "bytes": %zu, "p50_us": %.2f, "p99_us": %.2f, "algbw_gbps": %.3f, "busbw_gbps": %.3f})"
      "\n",
      ranks, bytes, p50 * 1e6, p99 * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  constexpr int kWarmUp = 3;
  for (int argument = 1; argument < argc; ++argument) {
    const std::size_t bytes = std::stoull(argv[argument]);
    std::vector<float> values(std::max<std::size_t>(1, bytes / sizeof(float)));
    for (int i = 0; i < kWarmUp; ++i) time_one(values);
    std::vector<double> seconds(rounds_for(bytes));
    for (double& each : seconds) each = time_one(values);
    if (rank == 0) report(seconds, bytes, ranks);
  }
  MPI_Finalize();
  return 0;
}
