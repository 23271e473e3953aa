#include "lockstep/comm/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/call/comm_thread.h"
#include "src/comm/group/call_chain.h"
#include "src/comm/group/process_group_impl.h"
#include "src/comm/group/thread_shares.h"
#include "src/comm/operation/call_checks.h"
#include "src/comm/rendezvous/group_rendezvous.h"
#include "src/core/base/known_variables.h"
#include "src/core/process/first_process.h"
#include "src/core/process/standard_streams.h"

namespace lockstep {

namespace {

void check_timeout(const char* name, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) throw InvalidArgument("process group: {} is {} ms; it must be > 0", name, timeout.count());
}

std::chrono::milliseconds time_of(const char* name, const std::optional<std::chrono::milliseconds>& option,
                                  const char* variable, std::chrono::milliseconds otherwise) {
  if (option) check_timeout(name, *option);
  if (option) return std::min(*option, kLongestTimeout);
  const auto seconds =
      env::integer(variable, 1, std::chrono::duration_cast<std::chrono::seconds>(kLongestTimeout).count());
  return seconds ? std::chrono::seconds(*seconds) : otherwise;
}

// The settings from the group's options and the environment, with the checks that one rank can make alone.
struct GroupSettings {
  BackendChoice backends;
  std::string transport;
  Device* device = nullptr;
  std::chrono::milliseconds store_timeout, timeout, stall_timeout;
};

GroupSettings settings_of(const Place& place, const ProcessGroupOptions& options) {
  if (place.world_size < 1 || place.rank < 0 || place.rank >= place.world_size)
    throw InvalidArgument("process group: rank {} does not exist in a world of {}", place.rank, place.world_size);
  GroupSettings settings;
  settings.store_timeout =
      time_of("store_timeout", options.store_timeout, env::kStoreTimeout, std::chrono::seconds(60));
  settings.timeout = time_of("timeout", options.timeout, env::kTimeout, std::chrono::minutes(5));
  settings.stall_timeout =
      time_of("stall_timeout", options.stall_timeout, env::kStallTimeout, std::chrono::seconds(30));
  if (settings.stall_timeout < std::chrono::milliseconds(100))
    throw InvalidArgument("process group: a stall_timeout of {} ms is too short for heartbeats; at least 100",
                          settings.stall_timeout.count());
  settings.device = options.device != nullptr ? options.device : &local_device(place.local_rank);
  settings.backends = choose_backends(place, options.backend, *settings.device);
  settings.transport = options.transport;
  if (settings.transport.empty()) settings.transport = env::text(env::kTransport).value_or("auto");
  const std::array known = {"auto", "shm", "tcp", "hierarchical"};
  if (std::find(known.begin(), known.end(), settings.transport) == known.end())
    throw InvalidArgument("unknown transport '{}': LOCKSTEP_TRANSPORT is one of auto, shm, tcp, hierarchical",
                          settings.transport);
  return settings;
}

// `base` with those of `over` that are given.
ProcessGroupOptions options_over(ProcessGroupOptions base, const ProcessGroupOptions& over) {
  if (!over.backend.empty()) base.backend = over.backend;
  if (!over.transport.empty()) base.transport = over.transport;
  if (over.timeout) base.timeout = over.timeout;
  if (over.stall_timeout) base.stall_timeout = over.stall_timeout;
  if (over.store_timeout) base.store_timeout = over.store_timeout;
  if (over.device != nullptr) base.device = over.device;
  return base;
}

// Key in the job's store: the number of groups that have met, whose rendezvous keys are erased.
constexpr const char* kGroupsMet = "groups met";

void refuse_who_is_late(const Place& place, Store& store, int group) {
  if (std::stoi(store.set_if_absent(kGroupsMet, "0")) <= group) return;
  throw RendezvousError(
      "rank {} arrived after all ranks of this job had met: is it a second process of that rank, or was the first one "
      "lost? A rank that is lost ends the job; start all of them again",
      place.rank);
}

std::string random_name() {
  std::array<std::byte, 8> random;
  crypto::fill_random(random);
  return crypto::hex(random);
}

thread_local std::weak_ptr<ProcessGroup> this_threads_group;

// The latest group of each thread that called init_process_group(); other threads of the process may use it, too.
struct DefaultGroups {
  std::mutex mutex;
  std::map<std::thread::id, std::weak_ptr<ProcessGroup>> by_thread;
};

DefaultGroups& default_groups() {
  static auto* const kGroups = new DefaultGroups;  // never destroyed: threads may outlive main()
  return *kGroups;
}

void make_default(const std::shared_ptr<ProcessGroup>& group) {
  this_threads_group = group;
  const std::lock_guard lock(default_groups().mutex);
  default_groups().by_thread[std::this_thread::get_id()] = group;
}

// A continuation may hold the last reference, on a thread that ends with the group.
void end_group(ProcessGroup* group) {
  if (!CommThread::run_after_operation([group] { delete group; })) delete group;
}

// A process joins its job once, and all its later groups use the same store. If rank 0 stopped its server with the
// first group, a rank that is already making the second one would lose it.
class JobRendezvous {
 public:
  // OpenSSL cleans up at exit, in the reverse order of first use. Using it here keeps it alive until the server has
  // ended.
  JobRendezvous() {
    std::array<std::byte, 16> unused;
    crypto::fill_random(unused);
  }
  ~JobRendezvous() { leave_parents_server_alone(); }

  Rendezvous of(const JobEnvironment& job, std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    leave_parents_server_alone();
    if (!rendezvous_.store || job != job_ || job.kind == JobEnvironment::Kind::kAlone) {
      rendezvous_ = {};
      pid_ = getpid();
      rendezvous_ = rendezvous(job, timeout);
      job_ = job;
    }
    return rendezvous_;
  }

 private:
  // A forked child shares the connection with its parent and has the server's memory without its thread: it must
  // neither use nor destroy them.
  void leave_parents_server_alone() {
    if (rendezvous_.store && pid_ != getpid()) {
      static auto& parents = *new std::vector<Rendezvous>;
      parents.push_back(std::exchange(rendezvous_, {}));
    }
  }

  std::mutex mutex_;
  JobEnvironment job_;
  Rendezvous rendezvous_;
  pid_t pid_ = 0;
};

}  // namespace

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ProcessGroup::~ProcessGroup() {
  // The other ranks report that this rank has left; its own record says why.
  if (std::uncaught_exceptions() > 0)
    impl_->recorded->recorder.group_failed("an exception ended this rank's part in the group");
  impl_->finish_work_beside();
  impl_->leave();
}
void ProcessGroup::leave() {
  impl_->finish_work_beside();
  impl_->leave();
}
void ProcessGroup::before_leaving(std::function<void()> end) { impl_->before_leaving.push_back(std::move(end)); }

std::shared_ptr<ProcessGroup> ProcessGroup::Impl::share(std::unique_ptr<Impl> impl) {
  const auto chains = impl->chains;
  std::shared_ptr<ProcessGroup> group(new ProcessGroup(std::move(impl)), end_group);
  for (const auto& chain : chains) chain->set_group(group);
  return group;
}

std::shared_ptr<ProcessGroup> ProcessGroup::wrap(const Place& place, std::unique_ptr<Backend> cpu_backend,
                                                 std::chrono::milliseconds timeout,
                                                 std::unique_ptr<Backend> gpu_backend, Device* device) {
  check_timeout("timeout", timeout);
  Backends backends{std::move(cpu_backend), std::move(gpu_backend)};
  return Impl::share(std::make_unique<Impl>(place, std::move(backends), device, timeout, GroupOrigin{}));
}

std::shared_ptr<ProcessGroup> ProcessGroup::create(const Place& place, std::shared_ptr<Store> store, std::string token,
                                                   const ProcessGroupOptions& options, std::string advertise_address) {
  return Impl::create(place, std::move(store), std::move(token), options, std::move(advertise_address), {});
}

std::shared_ptr<ProcessGroup> ProcessGroup::Impl::create(const Place& place, std::shared_ptr<Store> store,
                                                         std::string token, const ProcessGroupOptions& options,
                                                         std::string advertise_address, GroupOrigin origin) {
  const GroupSettings settings = settings_of(place, options);
  const auto rendezvous = scoped(store, "rendezvous/");  // erased once all ranks have joined
  register_rank(place, *rendezvous, settings.store_timeout);
  try {
    const bool is_whole_job = origin.job.empty();
    if (is_whole_job) origin.job = rendezvous->set_if_absent("flight/job", random_name());
    const BackendContext context{.place = place,
                                 .store = rendezvous,
                                 .token = token,
                                 .transport = settings.transport,
                                 .advertise_address = advertise_address,
                                 .timeout = settings.timeout,
                                 .store_timeout = settings.store_timeout,
                                 .stall_timeout = settings.stall_timeout,
                                 .node = env::text(env::kNode).value_or(""),
                                 .device = settings.device};
    if (is_whole_job) share_threads(context, origin.is_init_process_groups);
    Backends made = make_backends(settings.backends, context);
    auto group = share(std::make_unique<Impl>(place, std::move(made), settings.device, settings.timeout, origin));
    group->impl_->store = std::move(store);
    group->impl_->token = std::move(token);
    group->impl_->advertise_address = std::move(advertise_address);
    group->impl_->options = options;
    finish_rendezvous(place, *rendezvous, settings.store_timeout, origin.all_have_come);
    return group;
  } catch (const std::exception& error) {
    give_up(place, *rendezvous, error.what());
    throw;
  }
}

const Place& ProcessGroup::place() const { return impl_->place; }
Device& ProcessGroup::local_device() const {
  return impl_->device != nullptr ? *impl_->device : lockstep::local_device(impl_->place.local_rank);
}
std::chrono::milliseconds ProcessGroup::timeout() const { return impl_->timeout; }
Backend& ProcessGroup::backend(DeviceKind device) const { return impl_->backend(device, "backend"); }

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key) { return split(color, key, {}); }

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key, const ProcessGroupOptions& options) {
  if (!impl_->store)
    throw InvalidArgument("split: this group was made with wrap() and has no store in which the ranks could meet");
  struct Choice {
    std::int32_t color, key;
  };
  static_assert(sizeof(Choice) == 8);
  const Choice mine{color, key};
  std::vector<Choice> choices(static_cast<std::size_t>(world_size()));
  all_gather(&mine, choices.data(), 2, DType::kInt32, {.purpose = {"split"}});
  const std::uint64_t index = ++impl_->splits;  // the same on all ranks: split is collective
  if (color < 0) return nullptr;
  Place place = impl_->place;
  place.rank = place.world_size = 0;
  const flight::RecordedGroup& parent = *impl_->recorded;
  GroupOrigin origin{
      fmt::format("{}/split{}.{}", parent.description.name, index, color), parent.job, {}, parent.job_world_size};
  std::vector<std::pair<std::int32_t, int>> members;  // key, rank here
  for (int other = 0; other < world_size(); ++other) {
    const Choice& theirs = choices[static_cast<std::size_t>(other)];
    if (theirs.color != color) continue;
    ++place.world_size;
    members.emplace_back(theirs.key, other);
    if (theirs.key < key || (theirs.key == key && other < rank())) ++place.rank;
  }
  auto rendezvous = scoped(impl_->store, fmt::format("split{}/{}/", index, color));
  std::sort(members.begin(), members.end());
  const std::vector<int>& ancestors = parent.description.members;
  for (const auto& [_, member] : members)
    origin.members.push_back(ancestors.empty() ? member : ancestors[static_cast<std::size_t>(member)]);
  return Impl::create(place, std::move(rendezvous), impl_->token, options_over(impl_->options, options),
                      impl_->advertise_address, std::move(origin));
}

bool ProcessGroup::has_ranks_of(const ProcessGroup& other) const {
  if (this == &other) return true;
  const flight::RecordedGroup &mine = *impl_->recorded, &theirs = *other.impl_->recorded;
  if (mine.job.empty() || mine.job != theirs.job || world_size() != other.world_size()) return false;
  const auto member = [](const flight::RecordedGroup& group, std::size_t rank) {
    const std::vector<int>& members = group.description.members;
    return members.empty() ? static_cast<int>(rank) : members[rank];
  };
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(world_size()); ++rank)
    if (member(mine, rank) != member(theirs, rank)) return false;
  return true;
}

std::vector<std::byte*> ProcessGroup::peer_addresses(const void* data, std::size_t bytes, DeviceKind device) const {
  return impl_->backend(device, "peer_addresses").peer_addresses(data, bytes);
}

Buffer ProcessGroup::allocate(std::size_t bytes, DeviceKind device) {
  impl_->check_usable("allocate", device, false);
  check_allocation(bytes, impl_->place);
  const FlightNote note = impl_->recorded->recorder.allocation(++impl_->allocations, bytes);
  try {
    Buffer memory = impl_->backend(device, "allocate").allocate(bytes);
    flight::note_message_finished(note);
    return memory;
  } catch (...) {
    flight::note_failed(note);
    throw;
  }
}

void ProcessGroup::dump_flight_record(const std::string& path) const {
  flight::write(impl_->recorded->job_rank, "request", path);
}

void ProcessGroup::abort(const std::string& reason) {
  impl_->ending->is_over = true;  // so each group's calls throw the reason itself, not the other group's end
  for (const auto& backend : impl_->backends)
    if (backend) backend->abort(reason);
}

namespace {

// One rank warns for all, unless lockrun has done so.
void warn_of_unknown_variables(const JobEnvironment& job) {
  static std::atomic<bool> has_warned{false};
  if (job.store_is_hosted || job.place.rank != 0 || has_warned.exchange(true)) return;
  for (const std::string& doubt : env::doubts_about_environment()) log::warn("{}", doubt);
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options) {
  occupy_standard_streams();
  end_on_signals_as_first_process();  // a pod's only process is a rank
  static JobRendezvous job_rendezvous;
  // A program may end one group and make the next: their keys must differ.
  static std::atomic<int> groups_of_this_process{0};
  const JobEnvironment job = read_job_environment([](const char* name) { return env::text(name); });
  if (!job.store_is_hosted) log::set_rank(job.place.rank, job.place.world_size);  // lockrun marks the lines itself
  if (job.kind != JobEnvironment::Kind::kAlone) write_output_by_lines();
  warn_of_unknown_variables(job);
  // This throws the errors that this rank can find by itself. If rank 0 threw them later, the others would lose the
  // store.
  const GroupSettings settings = settings_of(job.place, options);
  const Rendezvous rendezvous = job_rendezvous.of(job, settings.store_timeout);
  const int earlier = groups_of_this_process.fetch_add(1);
  refuse_who_is_late(job.place, *rendezvous.store, earlier);
  const auto store = scoped(rendezvous.store, fmt::format("group{}/", earlier));
  const GroupOrigin origin{.name = earlier == 0 ? "world" : fmt::format("world{}", earlier + 1),
                           .is_init_process_groups = true,
                           .all_have_come = [&] { rendezvous.store->set(kGroupsMet, std::to_string(earlier + 1)); }};
  auto group =
      ProcessGroup::Impl::create(job.place, store, rendezvous.token, options, rendezvous.advertise_address, origin);
  make_default(group);
  return group;
}

std::shared_ptr<ProcessGroup> default_process_group() {
  if (auto own = this_threads_group.lock()) return own;
  std::vector<std::shared_ptr<ProcessGroup>> alive;  // destroyed after the lock: the last reference to a group ends it
  const std::lock_guard lock(default_groups().mutex);
  std::erase_if(default_groups().by_thread, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [thread, group] : default_groups().by_thread)
    if (auto other = group.lock()) alive.push_back(std::move(other));
  if (alive.size() > 1)
    throw InvalidArgument(
        "default group: {} threads of this process have called init_process_group(), but this thread has not: "
        "give the group explicitly, as .group",
        alive.size());
  return alive.empty() ? nullptr : alive.front();
}

}  // namespace lockstep
