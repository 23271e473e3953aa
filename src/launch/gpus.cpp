#include "src/launch/gpus.h"

#include <algorithm>
#include <numeric>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::launch {

namespace {

constexpr double kGigabyte = 1e9;

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text.size() < 6;
}

std::string list_of(const std::vector<VisibleGpu>& gpus) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size(); ++i) text += fmt::format("{}{} ({}, {})", i == 0 ? "" : ", ", i, gpus[i].name, gpus[i].uuid);
  return text;
}

int find(const std::string& name, const std::vector<VisibleGpu>& gpus) {
  if (is_number(name)) {
    const auto ordinal = static_cast<std::size_t>(std::stoi(name));
    if (ordinal < gpus.size()) return static_cast<int>(ordinal);
    throw InvalidArgument("--gpus {}: this machine shows {} GPU{}, counted from 0: {}", name, gpus.size(), gpus.size() == 1 ? "" : "s",
                          list_of(gpus));
  }
  int found = -1;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].uuid.compare(0, name.size(), name) != 0) continue;
    if (found >= 0)
      throw InvalidArgument("--gpus {}: {} and {} both begin so; name more of it", name, gpus[static_cast<std::size_t>(found)].uuid,
                            gpus[i].uuid);
    found = static_cast<int>(i);
  }
  if (found < 0) throw InvalidArgument("--gpus {}: no visible GPU has that UUID: {}", name, list_of(gpus));
  return found;
}

std::vector<int> chosen(const GpuRequest& request, const std::vector<VisibleGpu>& gpus) {
  std::vector<int> ordinals(gpus.size());
  std::iota(ordinals.begin(), ordinals.end(), 0);
  if (request.kind != GpuRequest::Kind::kList) return ordinals;
  ordinals.clear();
  for (const std::string& name : request.names) {
    const int ordinal = find(name, gpus);
    if (std::find(ordinals.begin(), ordinals.end(), ordinal) != ordinals.end())
      throw InvalidArgument("--gpus: GPU {} is named twice; to run several ranks on it, use --share-gpu", ordinal);
    ordinals.push_back(ordinal);
  }
  return ordinals;
}

GpuAssignment all_on_cpu(int ranks, std::string remark) {
  const auto n = static_cast<std::size_t>(ranks);
  return {std::vector<std::optional<int>>(n), std::vector<std::vector<std::pair<std::string, std::string>>>(n, {{env::kDevice, "cpu"}}),
          std::move(remark)};
}

}  // namespace

GpuRequest parse_gpus(const std::string& text, int share) {
  using Kind = GpuRequest::Kind;
  if (share < 1 || share > 64) throw InvalidArgument("--share-gpu {}: 1 to 64 ranks can share a GPU", share);
  if (text == "auto") return {Kind::kAuto, {}, share};
  if (text == "none") return {Kind::kNone, {}, share};
  if (text == "all") return {Kind::kAll, {}, share};
  GpuRequest request{Kind::kList, {}, share};
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    if (!is_number(name) && name.rfind("GPU-", 0) != 0)
      throw InvalidArgument("--gpus {}: '{}' is no GPU: auto, all, none, or a list of numbers or UUIDs, such as 0,1 or GPU-8c9f", text,
                            name);
    request.names.push_back(name);
    if (end == text.size()) return request;
    begin = end + 1;
  }
}

GpuAssignment assign_gpus(const GpuRequest& request, const std::vector<VisibleGpu>& gpus, const std::string& why_none, int ranks) {
  using Kind = GpuRequest::Kind;
  if (request.kind == Kind::kNone) return all_on_cpu(ranks, "");
  if (gpus.empty()) {
    if (request.kind != Kind::kAuto) throw InvalidArgument("--gpus: there is none to use: {}; without GPUs: --gpus none", why_none);
    return all_on_cpu(ranks, "no GPU is used: " + why_none);
  }
  const std::vector<int> ordinals = chosen(request, gpus);
  const auto share = static_cast<std::size_t>(request.share);
  if (static_cast<std::size_t>(ranks) > ordinals.size() * share)
    throw InvalidArgument(
        "{} ranks need {} GPUs, and there {} {}: start fewer, let --share-gpu {} put several on one (for tests), or compute on the CPU "
        "with --gpus none",
        ranks, (static_cast<std::size_t>(ranks) + share - 1) / share, ordinals.size() == 1 ? "is" : "are", ordinals.size(),
        (static_cast<std::size_t>(ranks) + ordinals.size() - 1) / ordinals.size());
  GpuAssignment assignment;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    const int ordinal = ordinals[rank / share];
    assignment.gpu_of_rank.emplace_back(ordinal);
    auto& variables = assignment.environment.emplace_back();
    variables.emplace_back(env::kDevice, fmt::format("cuda:{}", ordinal));
    if (share == 1) continue;
    // NCCL up to 2.29 takes ranks with unlike host ids for ranks on other machines, newer ones have a switch.
    variables.emplace_back(env::kShareGpu, std::to_string(share));
    variables.emplace_back(env::kGpuMemory, std::to_string(gpus[static_cast<std::size_t>(ordinal)].memory_bytes / share * 9 / 10));
    variables.emplace_back("NCCL_HOSTID", fmt::format("lockstep-rank-{}", rank));
    variables.emplace_back("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  }
  return assignment;
}

std::string describe_gpus(const std::vector<VisibleGpu>& gpus, int share) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const double bytes = static_cast<double>(gpus[i].memory_bytes) / kGigabyte;
    text += fmt::format("gpu {}: {}, {:.1f} GB, {}", i, gpus[i].name, bytes, gpus[i].uuid);
    if (share > 1) {
      text += ": logical devices";
      for (int k = 0; k < share; ++k)
        text += fmt::format("{} {}", k == 0 ? "" : ",", i * static_cast<std::size_t>(share) + static_cast<std::size_t>(k));
      text += fmt::format(" with {:.1f} GB each", bytes / share * 0.9);
    }
    text += '\n';
  }
  return text;
}

}  // namespace lockstep::launch
