#include "src/comm/group/thread_shares.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/rendezvous/group_rendezvous.h"
#include "src/core/process/compute_threads.h"
#include "src/core/process/process_limits.h"

namespace lockstep {

namespace {

// Containers on one machine use the same core numbers.
RankCores own_cores() {
  RankCores own;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), own.machine);
  try {
    own.cores = affinity();
  } catch (const Error&) {
    // The number of cores is unknown: use one thread.
  }
  struct stat group {};
  const auto quota = cpu_quota();
  if (quota && ::stat(quota->group.c_str(), &group) == 0) {
    own.container = fmt::format("{}", group.st_ino);
    own.quota = quota->cores;
  }
  return own;
}

std::string encode_cores(const RankCores& rank) {
  const auto word = [](const std::string& text) { return text.empty() ? "-" : text; };
  std::string text = fmt::format("{} {} {}", word(rank.machine), word(rank.container), rank.quota);
  for (const int core : rank.cores) text += " " + std::to_string(core);
  return text;
}

RankCores decode_cores(const std::string& text) {
  std::istringstream words(text);
  RankCores rank;
  words >> rank.machine >> rank.container >> rank.quota;
  for (int core = 0; words >> core;) rank.cores.push_back(core);
  return rank;
}

// One rank computes the answer for all, so that not every rank has to read every other rank's value.
std::string shares_of_all(const BackendContext& context) {
  std::vector<RankCores> ranks;
  for (int rank = 0; rank < context.place.world_size; ++rank)
    ranks.push_back(decode_cores(await_value(context, rank, fmt::format("cores/{}", rank))));
  std::string text;
  for (const int threads : thread_shares(ranks)) text += std::to_string(threads) + " ";
  return text;
}

}  // namespace

std::vector<int> thread_shares(const std::vector<RankCores>& ranks) {
  std::map<std::string, std::map<int, int>> users;  // by machine and core
  for (const RankCores& rank : ranks)
    for (const int core : rank.cores) ++users[rank.machine][core];
  std::map<std::pair<std::string, std::string>, int> members;  // the ranks in each container of a machine
  for (const RankCores& rank : ranks) ++members[{rank.machine, rank.container}];
  std::map<std::string, int> smallest;
  for (const RankCores& rank : ranks) {
    double cores = 1e-6;  // so that three thirds of a core make one core
    for (const int core : rank.cores) cores += 1.0 / users[rank.machine][core];
    if (rank.quota > 0) cores = std::min(cores, 1e-6 + 1.0 * rank.quota / members[{rank.machine, rank.container}]);
    const int threads = std::max(1, static_cast<int>(cores));
    const auto [known, is_first] = smallest.emplace(rank.machine, threads);
    if (!is_first) known->second = std::min(known->second, threads);
  }
  std::vector<int> shares;
  for (const RankCores& rank : ranks) shares.push_back(smallest[rank.machine]);
  return shares;
}

void share_threads(const BackendContext& context, bool decides) {
  context.store->set(fmt::format("cores/{}", context.place.rank), encode_cores(own_cores()));
  if (context.place.rank == 0) context.store->set("threads", shares_of_all(context));
  std::istringstream shares(await_value(context, 0, "threads"));
  int threads = 1;
  for (int rank = 0; rank <= context.place.rank; ++rank) shares >> threads;
  static std::atomic<pid_t> decided_for{0};  // a forked child decides again
  if (decided_for.exchange(::getpid()) != ::getpid() || decides) set_compute_threads(threads);
}

}  // namespace lockstep
