// How fast an all-reduce is, by message size.
//
//   build/bench/all_reduce --ranks 2 -b 4 -e 64M -f 4
//
// Every round fills the buffer, meets at a barrier, times one float sum in place, and takes the slowest rank's time.
// algbw = bytes / time; busbw = algbw * 2 (n-1) / n, what a wire between the ranks would have to carry.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cxxopts.hpp>
#include <string>
#include <vector>

#include "bench/bench_common.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/launch.h"

namespace ls = lockstep;

namespace {

struct Settings {
  int ranks = 2;
  std::vector<std::size_t> sizes;
  bool plain = false;
  bool json = false;
  std::string transport;
  std::size_t rounds = 0;  // 0: by size
};

// As many as take about as long for every size.
std::size_t rounds_for(std::size_t bytes) {
  return std::clamp<std::size_t>((std::size_t{64} << 20) / std::max<std::size_t>(bytes, 4096), 7, 2000);
}

std::vector<double> time_rounds(ls::ProcessGroup& group, float* data, std::size_t count, std::size_t rounds) {
  constexpr std::size_t kWarmUp = 3;
  std::vector<double> seconds;
  for (std::size_t round = 0; round < rounds + kWarmUp; ++round) {
    std::fill(data, data + count, 1.0f);
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    group.all_reduce(data, count, ls::DType::kFloat32);
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    group.all_reduce(&took, 1, ls::DType::kFloat64, ls::ReduceOp::kMax);
    if (round >= kWarmUp) seconds.push_back(took);
  }
  if (count != 0 && data[count - 1] != static_cast<float>(group.world_size())) throw ls::Error("all_reduce: wrong sum {}", data[count - 1]);
  return seconds;
}

void run_sizes(const Settings& settings) {
  const auto group = ls::init_process_group({.transport = settings.transport});
  const std::size_t most = *std::max_element(settings.sizes.begin(), settings.sizes.end());
  std::vector<float> plain(settings.plain ? most / 4 + 1 : 0);
  const ls::Buffer registered = settings.plain ? ls::Buffer() : group->allocate(most + 4);
  float* data = settings.plain ? plain.data() : reinterpret_cast<float*>(registered.data());
  ls::bench::Report report(settings.json);
  for (const std::size_t bytes : settings.sizes) {
    const auto seconds =
        time_rounds(*group, data, std::max<std::size_t>(1, bytes / 4), settings.rounds != 0 ? settings.rounds : rounds_for(bytes));
    if (group->rank() != 0) continue;
    const double p50 = ls::bench::quantile(seconds, 0.5), p99 = ls::bench::quantile(seconds, 0.99);
    const double algbw = static_cast<double>(bytes) / p50 / 1e9, n = group->world_size();
    report.row({{"ranks", group->world_size()},
                {"bytes", bytes},
                {"p50_us", ls::bench::rounded(p50 * 1e6, 2)},
                {"p99_us", ls::bench::rounded(p99 * 1e6, 2)},
                {"algbw_gbps", ls::bench::rounded(algbw, 3)},
                {"busbw_gbps", ls::bench::rounded(algbw * 2 * (n - 1) / n, 3)}});
  }
}

Settings parse(int argc, char** argv) {
  cxxopts::Options options("all_reduce", "Time of an all-reduce (float sum, in place) by message size.");
  options.add_options()("ranks", "processes to start", cxxopts::value<int>()->default_value("2"))(
      "b,begin", "smallest message; K, M and G are binary", cxxopts::value<std::string>()->default_value("4"))(
      "e,end", "largest message", cxxopts::value<std::string>()->default_value("64M"))("f,factor", "from one size to the next",
                                                                                       cxxopts::value<std::size_t>()->default_value("4"))(
      "plain", "ordinary memory instead of registered")("transport", "auto, shm or tcp", cxxopts::value<std::string>()->default_value(""))(
      "rounds", "timed rounds a size; 0: by size", cxxopts::value<std::size_t>()->default_value("0"))("json", "JSON lines")("h,help",
                                                                                                                            "this");
  Settings settings;
  try {
    const auto flags = options.parse(argc, argv);
    if (flags.count("help") != 0) {
      std::puts(options.help().c_str());
      std::exit(0);
    }
    settings = {.ranks = flags["ranks"].as<int>(),
                .plain = flags.count("plain") != 0,
                .json = flags.count("json") != 0,
                .transport = flags["transport"].as<std::string>(),
                .rounds = flags["rounds"].as<std::size_t>()};
    const std::size_t factor = flags["factor"].as<std::size_t>();
    const std::size_t begin = ls::bench::parse_bytes("-b", flags["begin"].as<std::string>());
    const std::size_t end = ls::bench::parse_bytes("-e", flags["end"].as<std::string>());
    if (factor < 2 || begin == 0 || end < begin) throw ls::InvalidArgument("all_reduce: -f must be at least 2 and 0 < -b <= -e");
    for (std::size_t bytes = begin; bytes <= end; bytes *= factor) settings.sizes.push_back(bytes);
  } catch (const ls::Error&) {
    throw;
  } catch (const std::exception& error) {  // the parser's own, whose name depends on its version
    throw ls::InvalidArgument("all_reduce: {}; see --help", error.what());
  }
  if (settings.ranks < 1) throw ls::InvalidArgument("all_reduce: --ranks {} must be at least 1", settings.ranks);
  return settings;
}

int run(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  return ls::launch::spawn(settings.ranks, argc, argv, [&](int, char**) {
    run_sizes(settings);
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("all_reduce", run, argc, argv); }
