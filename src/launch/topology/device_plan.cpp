#include "src/launch/topology/device_plan.h"

#include <algorithm>
#include <sstream>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/process/process_limits.h"
#include "src/launch/topology/cores.h"
#include "src/launch/topology/gpu_probe.h"

namespace lockstep::launch {

namespace {

GpuRequest request_of(const LaunchSpec& spec) {
  const long share = spec.share_gpu > 0 ? spec.share_gpu : env::integer(env::kShareGpu, 1, kMaxShare).value_or(1);
  if (!spec.gpus.empty()) return parse_gpus(spec.gpus, static_cast<int>(share));
  return request_by_device(env::text(env::kDevice).value_or("auto"), static_cast<int>(share));
}

void add_lines(std::vector<std::string>& lines, const std::string& text) {
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
}

// The GPUs belong to the ranks that compute.
GpuAssignment assign_devices(const DeviceFacts& facts, const LocalRanks& computing, int servers) {
  GpuRequest request = facts.request;
  if (computing.count == 0) request.kind = GpuRequest::Kind::kNone;
  GpuAssignment devices = assign_gpus(request, facts.found.gpus, facts.found.why_none, computing);
  for (int i = 0; i < servers; ++i) {
    devices.gpu_of_rank.emplace_back();
    devices.environment.push_back({{env::kDevice, "cpu"}});
  }
  return devices;
}

// Cores and memory: near each rank's GPU if there are GPUs, else the n-th part for the n-th rank.
void place_ranks(const DeviceFacts& facts, const GpuAssignment& gpus, int parts, DevicePlan& plan) {
  const std::size_t count = gpus.gpu_of_rank.size();
  plan.cores.resize(count);
  plan.memory_nodes.assign(count, -1);
  if (!facts.bind) return;
  if (gpus.chosen.empty() || facts.near.empty()) {
    plan.cores = assign_cores(facts.cores, parts);
    plan.cores.resize(count);
    return;
  }
  std::vector<NearDevice> near;
  for (const std::optional<int>& gpu : gpus.gpu_of_rank)
    if (gpu) near.push_back(facts.near[static_cast<std::size_t>(*gpu)]);
  plan.cores = assign_near_cores(facts.cores, near);
  plan.cores.resize(count);  // servers, the last ranks, are near no GPU and run on all cores
  std::vector<int> nodes = memory_nodes(near);
  nodes.resize(count, -1);
  if (facts.memory_obstacle.empty())
    plan.memory_nodes = nodes;
  else if (std::any_of(nodes.begin(), nodes.end(), [](int node) { return node >= 0; }))
    plan.remarks.push_back("memory is not placed near the GPUs: " + facts.memory_obstacle);
}

// The same for all ranks of a machine, so that none makes the others wait.
int threads_of(const DeviceFacts& facts, const DevicePlan& plan, int parts) {
  std::size_t threads = facts.cores.size() / static_cast<std::size_t>(parts);
  for (const auto& share : plan.cores)
    if (!share.empty()) threads = std::min(threads, share.size());
  if (facts.quota > 0) threads = std::min(threads, static_cast<std::size_t>(facts.quota / parts));
  return std::max(1, static_cast<int>(threads));
}

}  // namespace

DeviceFacts look_for_devices(const LaunchSpec& spec) {
  DeviceFacts facts{request_of(spec), {}, "", inherited_cores(), spec.bind_cores};
  if (const auto quota = cpu_quota()) facts.quota = quota->cores;
  if (facts.request.kind == GpuRequest::Kind::kNone) return facts;
  try {
    facts.found = find_gpus_apart();
  } catch (const Error& error) {
    facts.fault = error.what();
  }
  if (facts.bind && !facts.found.gpus.empty()) {
    const std::unique_ptr<Machine> machine = read_machine();
    for (const Gpu& gpu : facts.found.gpus) facts.near.push_back(machine->near(gpu.pci));
    if (machine->nodes().size() < 2)
      for (NearDevice& near : facts.near) near.nodes.clear();  // there is only one NUMA node
    facts.memory_obstacle = memory_choice_obstacle();
  }
  return facts;
}

int count_ranks(const LaunchSpec& spec, const DeviceFacts& facts) {
  using RanksFrom = LaunchSpec::RanksFrom;
  if (spec.ranks_from == RanksFrom::kNumber) return spec.ranks;
  const int all = static_cast<int>(facts.cores.size()), cores = facts.quota > 0 ? std::min(all, facts.quota) : all;
  if (spec.ranks_from == RanksFrom::kCores) return cores;
  if (!facts.fault.empty()) return 1;  // plan_devices() reports it
  const int places = places_on_gpus(facts.request, facts.found.gpus);
  if (places == 0 && spec.ranks_from == RanksFrom::kGpus)
    throw InvalidArgument("-n gpu: there is no GPU to count: {}; write how many ranks, or -n cpu",
                          facts.found.why_none.empty() ? "none is to be used" : facts.found.why_none);
  return places > 0 ? places : cores;
}

DevicePlan plan_devices(const DeviceFacts& facts, const LocalRanks& ranks) {
  if (!facts.fault.empty()) throw Error("{}; --gpus none ({}=cpu) computes on the CPU", facts.fault, env::kDevice);
  const int share = facts.request.share;
  LocalRanks computing = ranks;
  computing.count -= ranks.servers;
  const GpuAssignment gpus = assign_devices(facts, computing, ranks.servers);
  const bool on_cpu = gpus.chosen.empty();
  // A rank gets no more than its share of the CPU even if fewer ranks run.
  const int parts = on_cpu ? std::max(share, ranks.count) : ranks.count;
  DevicePlan plan;
  plan.environment = gpus.environment;
  place_ranks(facts, gpus, parts, plan);
  plan.threads = threads_of(facts, plan, parts);
  if (!gpus.remark.empty()) plan.remarks.push_back(gpus.remark);
  if (!on_cpu)
    add_lines(plan.remarks, describe_gpus(facts.found.gpus, gpus, share, computing));
  else if (share > 1)
    add_lines(plan.remarks, describe_cpu(facts.cores.size(), share, ranks, facts.bind));
  return plan;
}

}  // namespace lockstep::launch
