#include "src/launch/topology/gpus.h"

#include <algorithm>
#include <numeric>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/base/digits.h"
#include "src/core/device/device_choice.h"

#include "src/launch/topology/machine.h"

namespace lockstep::launch {

namespace {

bool is_ordinal(const std::string& text) { return is_digits(text) && text.size() < 6; }

std::string list_of(const std::vector<Gpu>& gpus) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    text += fmt::format("{}{} ({}, {})", i == 0 ? "" : ", ", i, gpus[i].name, gpus[i].uuid);
  return text;
}

int find(const GpuRequest& request, const std::string& name, const std::vector<Gpu>& gpus) {
  if (is_ordinal(name)) {
    const auto ordinal = static_cast<std::size_t>(std::stoi(name));
    if (ordinal < gpus.size()) return static_cast<int>(ordinal);
    const std::string asked = request.by_device ? fmt::format("{}=cuda:", env::kDevice) : "--gpus ";
    throw InvalidArgument("{}{}: this machine shows {} GPU{}, counted from 0: {}", asked, name, gpus.size(),
                          gpus.size() == 1 ? "" : "s", list_of(gpus));
  }
  int found = -1;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].uuid.compare(0, name.size(), name) != 0) continue;
    if (found >= 0)
      throw InvalidArgument("--gpus {}: {} and {} both begin with it; write more characters", name,
                            gpus[static_cast<std::size_t>(found)].uuid, gpus[i].uuid);
    found = static_cast<int>(i);
  }
  if (found < 0) throw InvalidArgument("--gpus {}: no visible GPU has that UUID: {}", name, list_of(gpus));
  return found;
}

std::vector<int> chosen(const GpuRequest& request, const std::vector<Gpu>& gpus) {
  std::vector<int> ordinals(gpus.size());
  std::iota(ordinals.begin(), ordinals.end(), 0);
  if (request.kind != GpuRequest::Kind::kList) return ordinals;
  ordinals.clear();
  for (const std::string& name : request.names) {
    const int ordinal = find(request, name, gpus);
    if (std::find(ordinals.begin(), ordinals.end(), ordinal) != ordinals.end())
      throw InvalidArgument("--gpus: GPU {} is named twice; to run several ranks on it, use --share-gpu", ordinal);
    ordinals.push_back(ordinal);
  }
  return ordinals;
}

GpuAssignment all_on_cpu(int ranks, std::string remark) {
  const auto n = static_cast<std::size_t>(ranks);
  return {{},
          std::vector<std::optional<int>>(n),
          std::vector<std::vector<EnvironmentChange>>(n, {{env::kDevice, "cpu"}}),
          std::move(remark)};
}

void require_places(const LocalRanks& ranks, std::size_t gpus, int share) {
  const auto wanted = static_cast<std::size_t>(ranks.count), by_gpu = static_cast<std::size_t>(share);
  if (wanted <= gpus * by_gpu) return;
  throw InvalidArgument(
      "{} ranks need {} GPUs, and there {} {}: start fewer, let --share-gpu {} put several on one (for tests), or "
      "compute on the CPU with --gpus none ({}=cpu)",
      wanted, (wanted + by_gpu - 1) / by_gpu, gpus == 1 ? "is" : "are", gpus, (wanted + gpus - 1) / gpus, env::kDevice);
}

// "0, 1, 2", or "0, 1, ..., 63" if there are many.
std::string numbers(int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (count > 8 && i == 2) text += ", ...", i = count - 1;
    text += fmt::format("{}{}", i == 0 ? "" : ", ", first + i);
  }
  return text;
}

// The ranks that share the `place`-th GPU.
std::string ranks_on(int place, int share, const LocalRanks& ranks) {
  const int count = std::clamp(ranks.count - place * share, 0, share);
  if (count == 0) return "no rank";
  return fmt::format("rank{} {}", count == 1 ? "" : "s", numbers(ranks.first + place * share, count));
}

}  // namespace

GpuRequest parse_gpus(const std::string& text, int share) {
  using Kind = GpuRequest::Kind;
  if (share < 1 || share > kMaxShare)
    throw InvalidArgument("--share-gpu {}: 1 to {} ranks can share a GPU", share, kMaxShare);
  if (text == "auto") return {Kind::kAuto, {}, share};
  if (text == "none") return {Kind::kNone, {}, share};
  if (text == "all") return {Kind::kAll, {}, share};
  GpuRequest request{Kind::kList, {}, share};
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    if (!is_ordinal(name) && name.rfind("GPU-", 0) != 0)
      throw InvalidArgument(
          "--gpus {}: '{}' is not a GPU; expected auto, all, none, or a list of numbers or UUIDs, such as 0,1 or "
          "GPU-8c9f",
          text, name);
    request.names.push_back(name);
    if (end == text.size()) return request;
    begin = end + 1;
  }
}

GpuRequest request_by_device(const std::string& device, int share) {
  using Kind = GpuRequest::Kind;
  const DeviceChoice choice = parse_device_choice(device);
  if (choice.kind == DeviceChoice::Kind::kAuto) return {Kind::kAuto, {}, share};
  if (choice.kind == DeviceChoice::Kind::kCpu) return {Kind::kNone, {}, share};
  if (!choice.ordinal) return {Kind::kAll, {}, share, true};
  return {Kind::kList, {std::to_string(*choice.ordinal)}, share, true};
}

GpuAssignment assign_gpus(const GpuRequest& request, const std::vector<Gpu>& gpus, const std::string& why_none,
                          const LocalRanks& ranks) {
  using Kind = GpuRequest::Kind;
  if (request.kind == Kind::kNone) return all_on_cpu(ranks.count, "");
  if (gpus.empty()) {
    if (request.kind != Kind::kAuto)
      throw InvalidArgument("{} asks for GPUs, and there is none to use: {}; --gpus none ({}=cpu) computes on the CPU",
                            request.by_device ? env::kDevice : "--gpus", why_none, env::kDevice);
    return all_on_cpu(ranks.count, "computing on the CPU: " + why_none);
  }
  if (ranks.memory) parse_memory_policy(env::kGpuMemory, *ranks.memory);  // reported once here, not by every rank
  GpuAssignment assignment;
  assignment.chosen = chosen(request, gpus);
  require_places(ranks, assignment.chosen.size(), request.share);
  for (int rank = 0; rank < ranks.count; ++rank) {
    const int ordinal = assignment.chosen[static_cast<std::size_t>(rank / request.share)];
    assignment.gpu_of_rank.emplace_back(ordinal);
    auto& variables = assignment.environment.emplace_back();
    variables.emplace_back(env::kDevice, fmt::format("cuda:{}", ordinal));
    variables.emplace_back(env::kShareGpu,
                           request.share == 1 ? std::nullopt : std::optional(std::to_string(request.share)));
    if (request.share > 1 && !ranks.memory)
      variables.emplace_back(
          env::kGpuMemory,
          std::to_string(memory_share(gpus[static_cast<std::size_t>(ordinal)].memory_bytes, request.share)));
  }
  return assignment;
}

int places_on_gpus(const GpuRequest& request, const std::vector<Gpu>& gpus) {
  if (request.kind == GpuRequest::Kind::kNone || gpus.empty()) return 0;
  return static_cast<int>(chosen(request, gpus).size()) * request.share;
}

std::string describe_gpus(const std::vector<Gpu>& gpus, const GpuAssignment& assignment, int share,
                          const LocalRanks& ranks) {
  std::string text;
  for (int place = 0; place < static_cast<int>(assignment.chosen.size()); ++place) {
    const Gpu& gpu = gpus[static_cast<std::size_t>(assignment.chosen[static_cast<std::size_t>(place)])];
    text += fmt::format("gpu {}: {}, {:.1f} GB, {}: ", gpu.ordinal, gpu.name,
                        static_cast<double>(gpu.memory_bytes) / kGigabyte, gpu.uuid);
    if (share == 1) {
      text += ranks_on(place, share, ranks) + '\n';
      continue;
    }
    const std::string memory =
        ranks.memory ? fmt::format("{}={}", env::kGpuMemory, *ranks.memory)
                     : fmt::format("{:.1f} GB", static_cast<double>(memory_share(gpu.memory_bytes, share)) / kGigabyte);
    text += fmt::format("logical devices {} with {} each ({})\n", numbers(place * share, share), memory,
                        ranks_on(place, share, ranks));
  }
  return text;
}

std::string describe_cpu(std::size_t cores, int share, const LocalRanks& ranks, bool bind) {
  const auto parts = static_cast<std::size_t>(std::max(share, ranks.count));
  const std::string each = cores < parts ? "that take turns"
                           : !bind       ? "on all of them"
                                   : fmt::format("with {} core{} each", cores / parts, cores / parts == 1 ? "" : "s");
  return fmt::format("cpu: {} core{}: logical devices {} {} ({})\n", cores, cores == 1 ? "" : "s",
                     numbers(0, static_cast<int>(parts)), each, ranks_on(0, static_cast<int>(parts), ranks));
}

}  // namespace lockstep::launch
