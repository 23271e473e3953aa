#include "src/comm/nccl/nccl_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

#include "lockstep/comm/store.h"
#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/host_names.h"
#include "src/comm/rendezvous/group_rendezvous.h"

namespace lockstep::nccl {

namespace {

constexpr const char* kId = "nccl/id";
constexpr const char* kHostId = "NCCL_HOSTID";
constexpr int kFirstWithSharing = NCCL_VERSION(2, 30, 0);

constexpr const char* kAlgorithms = "NCCL_ALGO";

// The sums of NVLink SHARP, within a machine and across machines, are not promised to have the same bits in each run.
// LOCKSTEP_DETERMINISTIC=1 disables it before main(), unless the user chose otherwise, so that no other thread reads
// the environment while it is written.
[[maybe_unused]] const int kChosen =
    env::text(env::kDeterministic) == "1" ? setenv(kAlgorithms, "^NVLS,NVLSTree", 0) : 0;

std::string key_of_gpu(int rank) { return fmt::format("nccl/gpu/{}", rank); }

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

}  // namespace

ncclUniqueId agree_on_id(const BackendContext& context, const Api& api) {
  ncclUniqueId id{};
  if (context.place.rank == 0) {
    try {
      if (const ncclResult_t result = api.ncclGetUniqueId(&id); result != ncclSuccess)
        throw_nccl_error(api, result, "ncclGetUniqueId", nullptr);
    } catch (const Error& error) {
      context.store->set(kId, error.what());
      throw;
    }
    context.store->set(kId, std::string_view(id.internal, sizeof id.internal));
    return id;
  }
  const std::string text = await_value(context, 0, kId);
  if (text.size() != sizeof id.internal) throw Error("rank 0 could not make an NCCL id: {}", text);
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

namespace {

// A rank's message to the others. Throws InvalidArgument for variables that it cannot use.
std::string described(const BackendContext& context) {
  const long share = env::integer(env::kShareGpu, 1, 64).value_or(1);
  const bool deterministic = env::integer(env::kDeterministic, 0, 1).value_or(0) == 1;
  const auto algorithms = env::text(kAlgorithms);
  if (deterministic && !algorithms)
    throw InvalidArgument(
        "nccl: {}=1 was set after the program had started, when it was too late to choose NCCL's algorithms: set it, "
        "as "
        "1, in the environment of the program",
        env::kDeterministic);
  return fmt::format("{}\n{}\n{}={}, {}={}", share, context.device->identity(), env::kDeterministic,
                     deterministic ? 1 : 0, kAlgorithms, algorithms.value_or("unset"));
}

constexpr std::string_view kFailed = "failed\n";

}  // namespace

std::vector<GpuOfRank> gather_gpus(const BackendContext& context) {
  try {
    context.store->set(key_of_gpu(context.place.rank), described(context));
  } catch (const InvalidArgument& error) {  // the others would wait for it
    context.store->set(key_of_gpu(context.place.rank), std::string(kFailed) + error.what());
    throw;
  }
  std::vector<GpuOfRank> gpus;
  for (int rank = 0; rank < context.place.world_size; ++rank) {
    const std::string told = await_value(context, rank, key_of_gpu(rank));
    if (told.starts_with(kFailed)) throw InvalidArgument("rank {}: {}", rank, told.substr(kFailed.size()));
    std::istringstream text(told);
    GpuOfRank gpu;
    std::string most;
    std::getline(text, most);
    std::getline(text, gpu.identity);
    std::getline(text, gpu.algorithms);
    gpu.most_ranks = static_cast<int>(std::strtol(most.c_str(), nullptr, 10));
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void check_algorithms(const std::vector<GpuOfRank>& gpus) {
  for (std::size_t rank = 1; rank < gpus.size(); ++rank)
    if (gpus[rank].algorithms != gpus[0].algorithms)
      throw InvalidArgument(
          "nccl: rank 0 has {}, but rank {} has {}: the ranks would wait for each other in different algorithms. Set "
          "these variables alike on all ranks",
          gpus[0].algorithms, rank, gpus[rank].algorithms);
}

void check_sharing(const std::vector<GpuOfRank>& gpus) {
  std::map<std::string, std::vector<int>> ranks_of;
  std::map<std::string, int> most_of;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const std::string& identity = gpus[rank].identity;
    const int most = gpus[rank].most_ranks;
    ranks_of[identity].push_back(static_cast<int>(rank));
    const auto known = most_of.emplace(identity, most).first;
    known->second = std::min(known->second, most);
  }
  std::string shared;
  std::size_t needed = 1;
  for (const auto& [identity, ranks] : ranks_of) {
    if (ranks.size() <= static_cast<std::size_t>(most_of[identity])) continue;
    shared += fmt::format("{}ranks {} use {}", shared.empty() ? "" : ", ", listed(ranks), identity);
    needed = std::max(needed, ranks.size());
  }
  if (shared.empty()) return;
  throw InvalidArgument(
      "nccl: ranks share a GPU: {}. Start as many ranks as there are GPUs, or allow it on all ranks: `lockrun "
      "--share-gpu {}`, or {}={} in their environment",
      shared, needed, env::kShareGpu, needed);
}

std::vector<std::pair<std::string, std::string>> environment_for_sharing(const std::vector<GpuOfRank>& gpus, int rank,
                                                                         int nccl_version, const std::string& machine) {
  const auto& mine = gpus[static_cast<std::size_t>(rank)].identity;
  const auto has_mine = [&](const GpuOfRank& other) { return other.identity == mine; };
  if (std::count_if(gpus.begin(), gpus.end(), has_mine) < 2) return {};
  if (nccl_version >= kFirstWithSharing) return {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}};
  // Older versions refuse two ranks on one GPU of a machine. So each set of ranks with different GPUs pretends to be on
  // another machine.
  const auto set = std::count_if(gpus.begin(), gpus.begin() + rank, has_mine);
  return {{kHostId, fmt::format("{}-{}", machine, set)}};
}

void prepare_environment(const std::vector<GpuOfRank>& gpus, int rank, int nccl_version) {
  static const std::string kMachine = env::text(kHostId).value_or(host_name());  // the value before we set it
  for (const auto& [name, value] : environment_for_sharing(gpus, rank, nccl_version, kMachine))
    if (env::text(name.c_str()) != value) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace lockstep::nccl
