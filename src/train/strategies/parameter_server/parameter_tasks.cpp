#include "src/train/strategies/parameter_server/parameter_tasks.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/ddp/checks/replicas.h"
#include "src/train/strategies/kinds.h"

namespace lockstep::train {

namespace {

constexpr long kMaxTaskIndex = 65535;

Task own_task(const ProcessGroup& group, const ParameterServerOptions& options) {
  const std::optional<Task> stated = task_of_environment(env::text);
  if (options.servers == 0) {
    if (stated) return *stated;
    throw InvalidArgument(
        "parameter_server: which ranks are servers? Start with lockrun --ps P --workers W, set {} and {} for each "
        "process, or set .servers to the number of the last ranks that are servers",
        env::kJob, env::kTaskIndex);
  }
  const int workers = group.world_size() - options.servers;
  const bool is_server = group.rank() >= workers;
  const Task task =
      is_server ? Task{Task::Job::kServer, group.rank() - workers} : Task{Task::Job::kWorker, group.rank()};
  if (stated && *stated != task)
    throw InvalidArgument(
        "parameter_server: rank {} is {} by .servers = {}, and {} by {} and {}: leave one of them out", group.rank(),
        name_of(task), options.servers, name_of(*stated), env::kJob, env::kTaskIndex);
  return task;
}

// Compares with the number that lockrun or the user has set.
void check_number(const char* variable, const char* job, std::size_t found) {
  const auto stated = env::text(variable);
  if (stated && env::parse_integer(variable, *stated, 0, kMaxTaskIndex) != static_cast<long>(found))
    throw InvalidArgument(
        "parameter_server: {}={}, and {} of the group's ranks are '{}': start all processes of the job", variable,
        *stated, found, job);
}

void check_options(const ParameterServerOptions& options, int world_size) {
  if (options.staleness < 0)
    throw InvalidArgument(
        "parameter_server: .staleness is {}: 0 is synchronous, S lets a worker be S steps ahead of the slowest",
        options.staleness);
  if (options.backup_workers < 0)
    throw InvalidArgument(
        "parameter_server: .backup_workers is {}; expected the number of workers whose gradients "
        "a step may drop, from 0 on",
        options.backup_workers);
  if (options.backup_workers > 0 && options.staleness > 0)
    throw InvalidArgument(
        "parameter_server: .backup_workers = {} with .staleness = {}: an asynchronous worker waits for no other one's "
        "gradients, so none are dropped; set one of them to 0",
        options.backup_workers, options.staleness);
  if (options.allow_worker_failures && options.staleness == 0)
    throw InvalidArgument(
        "parameter_server: .allow_worker_failures needs an asynchronous job, .staleness above 0: a synchronous step "
        "takes the gradients of all workers, as under TensorFlow's SyncReplicasOptimizer");
  if (options.servers < 0 || options.servers >= world_size)
    throw InvalidArgument(
        "parameter_server: .servers is {} with {} ranks in all: from 1 on, and at least one rank must be left to be a "
        "worker",
        options.servers, world_size);
}

void check_numbers(const TaskTable& tasks, const ParameterServerOptions& options) {
  check_number(env::kNumPs, "ps", tasks.servers.size());
  check_number(env::kNumWorkers, "worker", tasks.workers.size());
  if (options.backup_workers < static_cast<int>(tasks.workers.size())) return;
  throw InvalidArgument(
      "parameter_server: .backup_workers is {} of {} workers: a step needs the gradients of at least one",
      options.backup_workers, tasks.workers.size());
}

// A worker's own devices, or the group's; parameters are on the CPU of their servers.
std::vector<Device*> devices_of(const TaskTable& tasks, const StrategyOptions& options) {
  std::set<const Device*> seen;
  for (const Device* device : options.devices)
    if (device == nullptr || !seen.insert(device).second)
      throw InvalidArgument("parameter_server: .devices: {}",
                            device == nullptr ? "one of them is null" : device->name() + " comes twice");
  if (tasks.own.job == Task::Job::kServer) return {&cpu_device()};
  return options.devices.empty() ? std::vector<Device*>{&tasks.group->local_device()} : options.devices;
}

// Collective. With workers that may fail each server has a group with each worker, so that the loss of one ends no
// other link. In each round a process joins one of them.
std::vector<Link> make_links(const ParameterServerJob& job) {
  const std::vector<int>& peers = job.is_server() ? job.tasks.workers : job.tasks.servers;
  std::vector<Link> links;
  for (const int rank : peers) links.push_back({job.tasks.group, rank});
  if (!job.options.allow_worker_failures) return links;
  const int own = job.tasks.own.index;
  const int rounds = static_cast<int>(std::max(job.tasks.workers.size(), job.tasks.servers.size()));
  for (int round = 0; round < rounds; ++round) {
    const int peer = job.is_server() ? (own + rounds - round) % rounds : (own + round) % rounds;
    const bool pairs = peer < static_cast<int>(peers.size());
    const int worker = job.is_server() ? peer : own;
    const auto group = job.tasks.group->split(pairs ? worker : -1, job.is_server() ? 1 : 0);
    if (pairs) links[static_cast<std::size_t>(peer)] = {group, 1 - group->rank()};
  }
  return links;
}

}  // namespace

std::string name_of(const Task& task) {
  return fmt::format("{}:{}", task.job == Task::Job::kServer ? "ps" : "worker", task.index);
}

std::optional<Task> task_of_environment(const EnvironmentLookup& lookup) {
  const auto text = [&](const char* name) {
    auto value = lookup(name);
    return value && value->empty() ? std::nullopt : value;
  };
  const auto job = text(env::kJob), index = text(env::kTaskIndex);
  if (!job) return std::nullopt;
  if (*job != "ps" && *job != "worker")
    throw InvalidArgument("environment: {}={}: ps or worker is needed", env::kJob, *job);
  if (!index)
    throw InvalidArgument("environment: {}={} is set but {} is not: which of them is this, from 0?", env::kJob, *job,
                          env::kTaskIndex);
  return Task{*job == "ps" ? Task::Job::kServer : Task::Job::kWorker,
              static_cast<int>(env::parse_integer(env::kTaskIndex, *index, 0, kMaxTaskIndex))};
}

TaskTable TaskTable::gather(std::shared_ptr<ProcessGroup> group, const ParameterServerOptions& options) {
  TaskTable table;
  on_all_ranks(group, [&] {
    check_options(options, group->world_size());
    table.own = own_task(*group, options);
  });
  const std::int32_t mine[2] = {table.own.job == Task::Job::kServer ? 1 : 0, table.own.index};
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(group->world_size()));
  group->all_gather(mine, all.data(), 2, DType::kInt32, {.purpose = {"tasks"}});
  for (int rank = 0; rank < group->world_size(); ++rank) {
    const std::size_t at = 2 * static_cast<std::size_t>(rank);
    auto& ranks = all[at] == 1 ? table.servers : table.workers;
    const Task task{all[at] == 1 ? Task::Job::kServer : Task::Job::kWorker, all[at + 1]};
    if (static_cast<std::size_t>(task.index) >= ranks.size())
      ranks.resize(static_cast<std::size_t>(task.index) + 1, -1);
    int& place = ranks[static_cast<std::size_t>(task.index)];
    if (place >= 0)
      throw InvalidArgument(
          "parameter_server: ranks {} and {} are both {}: each process of a job has a number of its own ({})", place,
          rank, name_of(task), env::kTaskIndex);
    place = rank;
  }
  if (table.workers.empty())
    throw InvalidArgument(
        "parameter_server: all {} ranks are servers, and there is no worker: start with lockrun --ps P --workers W",
        table.servers.size());
  if (table.servers.empty())
    throw InvalidArgument(
        "parameter_server: all {} ranks are workers, and there is no server: start with lockrun --ps P --workers W",
        table.workers.size());
  for (const auto* ranks : {&table.workers, &table.servers})
    for (std::size_t index = 0; index < ranks->size(); ++index)
      if ((*ranks)[index] < 0)
        throw InvalidArgument(
            "parameter_server: there is no {}, and there are {} with higher numbers: they count from 0 without a gap "
            "({})",
            name_of({ranks == &table.servers ? Task::Job::kServer : Task::Job::kWorker, static_cast<int>(index)}),
            ranks == &table.servers ? "servers" : "workers", env::kTaskIndex);
  table.group = std::move(group);
  return table;
}

int TaskTable::worker_of(int rank) const {
  const auto found = std::find(workers.begin(), workers.end(), rank);
  LOCKSTEP_CHECK(found != workers.end(), "parameter_server: rank {} is not a worker, but has sent a worker's message",
                 rank);
  return static_cast<int>(found - workers.begin());
}

std::string TaskTable::describe(int rank) const {
  for (std::size_t i = 0; i < servers.size(); ++i)
    if (servers[i] == rank) return fmt::format("ps:{} (rank {})", i, rank);
  return fmt::format("worker:{} (rank {})", worker_of(rank), rank);
}

std::string TaskTable::with_tasks(const std::string& message) const {
  if (message.starts_with(kParameterServer)) return message;
  constexpr std::string_view kRank = "rank ";
  std::set<int> named;
  for (std::size_t at = message.find(kRank); at != std::string::npos; at = message.find(kRank, at + 1)) {
    int rank = -1;
    std::from_chars(message.data() + at + kRank.size(), message.data() + message.size(), rank);
    if (rank >= 0 && rank < group->world_size() && rank != group->rank()) named.insert(rank);
  }
  std::string text = fmt::format("parameter_server: {}: {}", name_of(own), message);
  for (const int rank : named) {
    const std::string task = describe(rank);
    text += fmt::format("{}rank {} is {}", rank == *named.begin() ? "; " : ", ", rank, task.substr(0, task.find(' ')));
  }
  return text;
}

void ParameterServerJob::abort(const std::string& reason) const {
  if (!options.allow_worker_failures) return tasks.group->abort(reason);
  for (const Link& link : links) link.group->abort(reason);
}

std::unique_ptr<Strategy> make_parameter_server(Training training, const StrategyOptions& options) {
  const std::shared_ptr<ProcessGroup> group = group_of(options);
  ParameterServerJob job{.options = options.parameter_server};
  job.tasks = TaskTable::gather(group, options.parameter_server);
  job.training = std::move(training);
  job.tasks.with_names([&] {
    on_all_ranks(group, [&] {
      check_numbers(job.tasks, job.options);
      job.devices = devices_of(job.tasks, options);
      if (job.devices.size() > 1)
        job.copies = std::make_unique<DeviceCopies>(kParameterServer, job.training, job.devices);
      else
        job.replica = make_replica(job.training, *job.devices.front());
      check_float32(kParameterServer, job.model().parameters);
    });
    check_same_on_all_ranks(
        *group, "make_strategy",
        {fmt::format("servers = {}", job.options.servers), fmt::format("staleness = {}", job.options.staleness),
         fmt::format("sharding = {}", job.options.sharding == Sharding::kRoundRobin ? "kRoundRobin" : "kGreedyBytes"),
         fmt::format("backup_workers = {}", job.options.backup_workers),
         fmt::format("min_shard_bytes = {}", job.options.min_shard_bytes),
         fmt::format("allow_worker_failures = {}", job.options.allow_worker_failures)},
        "have different options");
    check_same_model(*group, *job.model().model, "make_strategy");
  });
  job.layout = lay_out_shards(job.model().parameters, static_cast<int>(job.tasks.servers.size()), job.options);
  const bool is_server = job.is_server();
  job.workers = group->split(is_server ? -1 : 0, job.tasks.own.index);
  job.links = make_links(job);
  std::unique_ptr<Strategy> server;
  on_all_ranks(group, [&] {  // making a server's optimizer may fail
    if (is_server) server = make_server(std::move(job));
  });
  return is_server ? std::move(server) : make_worker(std::move(job));
}

}  // namespace lockstep::train
