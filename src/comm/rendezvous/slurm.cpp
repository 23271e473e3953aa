#include "src/comm/rendezvous/slurm.h"

#include <cctype>
#include <numeric>

namespace lockstep::slurm {

namespace {

constexpr long kMaxJob = 4'294'967'295;
constexpr long kFirstPort = 20000, kPorts = 9973, kJobStride = 6163;

[[noreturn]] void refuse(const char* variable, const std::string& value, const char* expected) {
  throw InvalidArgument("environment: {}='{}' is invalid: expected {}", variable, value, expected);
}

// Reads an integer at `at` and advances `at`; returns -1 if there is none.
long take_number(const std::string& text, std::size_t& at) {
  const std::size_t begin = at;
  long number = 0;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0 && at - begin < 10; ++at)
    number = number * 10 + (text[at] - '0');
  return at == begin ? -1 : number;
}

bool take(const std::string& text, std::size_t& at, const std::string& expected) {
  if (text.compare(at, expected.size(), expected) != 0) return false;
  at += expected.size();
  return true;
}

// The first of several variables that is set, with its name.
struct Setting {
  const char* name = "";
  std::string value;
};
Setting first_set(const EnvironmentReader& reader, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto value = reader.text(name)) return {name, *value};
  return {};
}

long step_of(const EnvironmentReader& reader) {
  return reader.integer("SLURM_STEP_ID", 0, kMaxJob).value_or(reader.integer("SLURM_STEPID", 0, kMaxJob).value_or(0));
}

int local_world_size(const EnvironmentReader& reader, const Place& place) {
  const Setting tasks = first_set(reader, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!tasks.value.empty()) {
    const std::vector<int> counts = parse_tasks_per_node(tasks.name, tasks.value);
    const auto node = static_cast<std::size_t>(reader.integer("SLURM_NODEID", 0, kMaxRanks).value_or(0));
    // The list may be the allocation's and not the step's: then the numbers do not match, and it is ignored.
    if (node < counts.size() && std::accumulate(counts.begin(), counts.end(), 0L) == place.world_size)
      return counts[node];
  }
  return static_cast<int>(reader.integer("SLURM_NTASKS_PER_NODE", 1, kMaxRanks).value_or(place.local_rank + 1));
}

void read_address(const EnvironmentReader& reader, JobEnvironment& job) {
  job.kind = JobEnvironment::Kind::kAddress;
  const Setting hosts = first_set(reader, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (const auto host = reader.text(env::kMasterAddr)) {
    job.master_host = *host;
  } else if (!hosts.value.empty()) {
    job.master_host = first_host(hosts.name, hosts.value);
    job.host_source = fmt::format("the first host of {}", hosts.name);
  } else {
    throw InvalidArgument(
        "environment: SLURM_PROCID is set but SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are not: set MASTER_ADDR");
  }
  const auto reserved = reader.text("SLURM_STEP_RESV_PORTS");
  if (const auto port = reader.integer(env::kMasterPort, 1, kMaxPort)) {
    job.master_port = static_cast<std::uint16_t>(*port);
  } else if (reserved) {
    job.master_port = first_port("SLURM_STEP_RESV_PORTS", *reserved);
    job.port_source = "the first of SLURM_STEP_RESV_PORTS";
  } else {
    job.master_port = port_of_step(reader.required("SLURM_JOB_ID", "SLURM_PROCID", 0, kMaxJob), step_of(reader));
    job.port_source = "made of SLURM_JOB_ID and SLURM_STEP_ID";
  }
}

}  // namespace

std::vector<int> parse_tasks_per_node(const char* variable, const std::string& value) {
  constexpr const char* kExpected = "a list like 2(x3),1";
  std::vector<int> counts;
  std::size_t at = 0;
  do {
    const long tasks = take_number(value, at);
    long nodes = 1;
    if (take(value, at, "(x")) {
      nodes = take_number(value, at);
      if (!take(value, at, ")")) refuse(variable, value, kExpected);
    }
    if (tasks < 1 || tasks > kMaxRanks || nodes < 1 || nodes > kMaxRanks) refuse(variable, value, kExpected);
    counts.insert(counts.end(), static_cast<std::size_t>(nodes), static_cast<int>(tasks));
  } while (take(value, at, ","));
  if (at != value.size()) refuse(variable, value, kExpected);
  return counts;
}

std::string first_host(const char* variable, const std::string& list) {
  constexpr const char* kExpected = "a list like node[07-09,11],gpu3";
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const std::size_t begin = ++at;
    if (take_number(list, at) < 0) refuse(variable, list, kExpected);
    host += list.substr(begin, at - begin);
    at = list.find(']', at);
    if (at == std::string::npos) refuse(variable, list, kExpected);
    ++at;
  }
  if (host.empty() || host.find_first_of("] \t") != std::string::npos) refuse(variable, list, kExpected);
  return host;
}

std::uint16_t first_port(const char* variable, const std::string& ports) {
  std::size_t at = 0;
  const long port = take_number(ports, at);
  const bool ends_well = at == ports.size() || ports[at] == '-' || ports[at] == ',';
  if (port < 1 || port > kMaxPort || !ends_well) refuse(variable, ports, "a list like 12000-12003");
  return static_cast<std::uint16_t>(port);
}

std::uint16_t port_of_step(long job, long step) {
  return static_cast<std::uint16_t>(kFirstPort + (job % kPorts * kJobStride + step) % kPorts);
}

namespace {

// The number of tasks of the step to which this process belongs; 0: to none.
long tasks_of_step(const EnvironmentReader& reader) {
  if (!reader.text("SLURM_PROCID") || !(reader.text("SLURM_STEP_ID") || reader.text("SLURM_STEPID"))) return 0;
  const Setting tasks = first_set(reader, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  return tasks.value.empty() ? 0 : env::parse_integer(tasks.name, tasks.value, 1, kMaxRanks);
}

}  // namespace

bool is_task(const EnvironmentReader& reader) { return tasks_of_step(reader) > 1; }
bool is_lone_task(const EnvironmentReader& reader) { return tasks_of_step(reader) == 1; }

bool has_one_task_a_node(const EnvironmentReader& reader) {
  const Setting tasks = first_set(reader, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  const Setting nodes = first_set(reader, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  return is_task(reader) && tasks.value == nodes.value;
}

void read_job(const EnvironmentReader& reader, JobEnvironment& job) {
  const Setting tasks = first_set(reader, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  job.place.world_size = static_cast<int>(env::parse_integer(tasks.name, tasks.value, 1, kMaxRanks));
  job.place.rank = static_cast<int>(reader.required("SLURM_PROCID", tasks.name, 0, kMaxRanks));
  job.place.local_rank = static_cast<int>(reader.integer("SLURM_LOCALID", 0, kMaxRanks).value_or(0));
  job.place.local_world_size = local_world_size(reader, job.place);
  job.job_id = fmt::format("slurm-{}-{}", reader.required("SLURM_JOB_ID", "SLURM_PROCID", 0, kMaxJob), step_of(reader));
  if (job.place.local_world_size == job.place.world_size) {
    job.kind = JobEnvironment::Kind::kOneMachine;
    return;
  }
  read_address(reader, job);
}

std::string how_to_end_step(const EnvironmentLookup& lookup) {
  const EnvironmentReader reader(lookup);
  const Setting job = first_set(reader, {"SLURM_JOB_ID", "SLURM_JOBID"}),
                step = first_set(reader, {"SLURM_STEP_ID", "SLURM_STEPID"});
  // Another launcher in the step ends its ranks itself.
  if (reader.text(env::kRank) || job.value.empty() || step.value.empty() || !is_task(reader)) return "";
  return fmt::format(
      " (srun waits for that rank's end unless it was told -K, --kill-on-bad-exit: `scancel {}.{}` ends the step)",
      job.value, step.value);
}

}  // namespace lockstep::slurm
