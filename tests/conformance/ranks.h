// Runs a function as every rank of a group: as threads over one mapping, as threads that meet like processes, or as
// processes. A process that mpirun or lockrun started runs it as its one rank.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/host/hierarchical/hier_transport.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/host/shm/tuning.h"
#include "tests/conformance/table_store.h"
#include "tests/support/sanitized.h"
#ifdef STUB_NCCL
#include "tests/nccl/through_device.h"
#endif

namespace lockstep::testing {

// A backend and its transport. kThreads, kMemfd, kTcp: those of `host`. kNodeThreads, kNodes: ranks of several nodes
// (GroupSpec::nodes), which share memory as in kThreads and kMemfd. kNccl: with a stub for NCCL, and devices simulated
// by threads. kGpu: NCCL itself; the ranks are processes that lockrun started, and may share a GPU.
enum class Wire { kThreads, kMemfd, kTcp, kNodeThreads, kNodes, kMpi, kLocal, kDelay, kRecording, kNccl, kGpu };
inline const char* name_of(Wire wire) {
  constexpr const char* kNames[] = {"threads", "memfd", "tcp",       "node_threads", "nodes", "mpi",
                                    "local",   "delay", "recording", "nccl",         "gpu"};
  return kNames[static_cast<std::size_t>(wire)];
}
inline std::string_view backend_of(Wire wire) {
  return wire < Wire::kMpi ? "host" : wire == Wire::kGpu ? name_of(Wire::kNccl) : name_of(wire);
}
inline bool is_between_nodes(Wire wire) { return wire == Wire::kNodeThreads || wire == Wire::kNodes; }

using std::chrono::milliseconds;

// A rank for tests: it numbers its calls, as a process group does.
class Rank {
 public:
  Rank(Place place, std::unique_ptr<Backend> backend, milliseconds timeout)
      : place_(place), backend_(std::move(backend)), timeout_(timeout) {}

  int rank() const { return place_.rank; }
  int ranks() const { return place_.world_size; }
  Backend& backend() { return *backend_; }
  bool has_gpu_memory() const { return backend_->capabilities().gpu_memory; }
  void set_timeout(milliseconds timeout) { timeout_ = timeout; }
  void leave() { backend_.reset(); }
  // Converts the rank to a process group, which numbers the calls itself; call it before the first call.
  std::shared_ptr<ProcessGroup> into_group() { return ProcessGroup::wrap(place_, std::move(backend_), timeout_); }

  Operation operation(OperationKind kind, const void* send, void* receive, std::size_t count, DType dtype) {
    Operation call;
    call.signature.sequence = ++sequence_;
    call.signature.kind = kind;
    call.signature.count = count;
    call.signature.dtype = dtype;
    call.send = send;
    call.receive = receive;
    call.timeout = timeout_;
    return call;
  }
  Operation reduction(void* data, std::size_t count, DType dtype, ReduceOp op) {
    Operation call = operation(OperationKind::kAllReduce, data, data, count, dtype);
    call.signature.op = op;
    return call;
  }
  void all_reduce(void* data, std::size_t count, DType dtype = DType::kFloat32, ReduceOp op = ReduceOp::kSum) {
    backend_->run(reduction(data, count, dtype, op));
  }
  void broadcast(void* data, std::size_t count, DType dtype, int root) {
    Operation call = operation(OperationKind::kBroadcast, data, data, count, dtype);
    call.signature.root = root;
    backend_->run(call);
  }
  void all_gather(const void* send, void* receive, std::size_t count, DType dtype) {
    backend_->run(operation(OperationKind::kAllGather, send, receive, count, dtype));
  }
  void run(OperationKind kind, const void* send, void* receive, std::size_t count, DType dtype,
           ReduceOp op = ReduceOp::kSum, int root = -1) {
    Operation call = operation(kind, send, receive, count, dtype);
    call.signature.op = op;
    call.signature.root = root;
    backend_->run(call);
  }
  void barrier() { backend_->run(operation(OperationKind::kBarrier, nullptr, nullptr, 0, DType::kUInt8)); }

 private:
  Place place_;
  std::unique_ptr<Backend> backend_;
  milliseconds timeout_;
  std::uint64_t sequence_ = 0;
};

struct GroupSpec {
  Wire wire = Wire::kThreads;
  int ranks = 2;
  milliseconds timeout = std::chrono::seconds(kSanitized ? 90 : 30);
  milliseconds store_timeout = std::chrono::seconds(20);
  milliseconds stall_timeout = std::chrono::seconds(30);
  std::vector<std::string> tokens = {};  // by rank; empty: the same for all
  std::optional<host::Tuning> tuning = {};
  std::string nodes = {};                // by rank, the letter of its node: "aabb"
  std::string transport = {};            // in place of the case's own
  std::vector<int> device_of_rank = {};  // of kNccl; empty: one for each
};

// That many ranks on two nodes, as evenly as possible, for a transport between nodes.
inline std::string two_nodes(int ranks) {
  return std::string(static_cast<std::size_t>(ranks + 1) / 2, 'a') +
         std::string(static_cast<std::size_t>(ranks) / 2, 'b');
}

// The number of ranks of the job to which this process belongs, as tests/conformance/under_mpirun and
// tests/gpu/ranks_test.cpp set it; 0: it was not started as a rank.
inline int mpi_ranks() { return static_cast<int>(env::integer("LOCKSTEP_MPI_TEST_RANKS", 1, 1000).value_or(0)); }
inline int gpu_ranks() { return static_cast<int>(env::integer("LOCKSTEP_GPU_TEST_RANKS", 1, 1000).value_or(0)); }
inline bool is_started_as_rank(Wire wire) { return wire == Wire::kMpi || wire == Wire::kGpu; }
inline JobEnvironment started_job() {
  return read_job_environment([](const char* name) { return env::text(name); });
}

// The meeting point of a started job's processes, a new one in each call. All make the same groups in the same order.
inline std::shared_ptr<Store> next_store_of_job() {
  static const Rendezvous job = rendezvous(started_job(), std::chrono::seconds(20));
  static int groups = 0;
  return scoped(job.store, "group" + std::to_string(groups++) + "/");
}

// While it exists, groups of this process load that table.
class TuningFile {
 public:
  explicit TuningFile(const std::string& json) {
    const int fd = mkstemp(path_);
    LOCKSTEP_CHECK(fd >= 0 && write(fd, json.data(), json.size()) == static_cast<ssize_t>(json.size()),
                   "cannot write {}", path_);
    fchmod(fd, 0644);  // the ranks may have given up root's rights
    close(fd);
    setenv(env::kTuning, path_, 1);
  }
  ~TuningFile() {
    unsetenv(env::kTuning);
    unlink(path_);
  }
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;
  const char* path() const { return path_; }

 private:
  char path_[64] = "/tmp/lockstep-tuning-XXXXXX";
};

// The meeting point of one group; make it before the ranks start.
class Meeting {
 public:
  explicit Meeting(GroupSpec spec) : spec_(std::move(spec)) {
#ifdef STUB_NCCL
    if (spec_.wire == Wire::kNccl) devices_.resize(static_cast<std::size_t>(spec_.ranks));
#endif
    if (is_between_nodes(spec_.wire) && spec_.nodes.empty()) spec_.nodes = two_nodes(spec_.ranks);
    if (spec_.tuning) file_.emplace(host::to_json({*spec_.tuning, host::tuning_origin_here(spec_.ranks)}));
  }

  Rank join(int rank) const {
    const Place place{rank, spec_.ranks, rank, spec_.ranks};
    if (spec_.wire == Wire::kThreads) {
      auto provider = std::make_unique<host::ThreadMemoryProvider>(threads_);
      auto control = provider->share(host::ControlLayout::bytes(spec_.ranks), spec_.timeout);
      auto transport = std::make_unique<host::ShmTransport>(place, std::move(provider), std::move(control),
                                                            spec_.tuning.value_or(host::Tuning{}), spec_.stall_timeout);
      return Rank(place, make_host_backend(place, std::move(transport), spec_.timeout), spec_.timeout);
    }
    const BackendContext context = context_of(place);
    if (spec_.wire == Wire::kNodeThreads) {
      auto transport = host::make_hier_transport(context, meet_as_threads(rank), host::ReduceOrder::kRank);
      return Rank(place, make_host_backend(place, std::move(transport), spec_.timeout), spec_.timeout);
    }
#ifdef STUB_NCCL
    if (spec_.wire == Wire::kNccl) return Rank(place, make_nccl_over_stub(context, new_device_of(rank)), spec_.timeout);
    if (spec_.wire == Wire::kGpu) return Rank(place, make_nccl_on_gpu(context, local_device(rank)), spec_.timeout);
#endif
    return Rank(place, make_backend(backend_of(spec_.wire), context), spec_.timeout);
  }
  const GroupSpec& spec() const { return spec_; }

 private:
  BackendContext context_of(const Place& place) const {
    BackendContext context;
    context.place = place;
    context.store = is_started_as_rank(spec_.wire) ? next_store_of_job() : store_;
    context.token = spec_.tokens.empty() ? "secret" : spec_.tokens[static_cast<std::size_t>(place.rank)];
    context.transport = spec_.wire == Wire::kTcp ? "tcp" : is_between_nodes(spec_.wire) ? "auto" : "shm";
    if (!spec_.transport.empty()) context.transport = spec_.transport;
    if (!spec_.nodes.empty()) context.node = spec_.nodes[static_cast<std::size_t>(place.rank)];
    context.advertise_address = "127.0.0.1";
    context.timeout = spec_.timeout;
    context.store_timeout = spec_.store_timeout;
    context.stall_timeout = spec_.stall_timeout;
    return context;
  }

#ifdef STUB_NCCL
  // Made by its rank, in whose process the device's threads run.
  RecordingDevice& new_device_of(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    devices_[index] =
        std::make_unique<RecordingDevice>(spec_.device_of_rank.empty() ? rank : spec_.device_of_rank[index]);
    return *devices_[index];
  }
#endif

  // The result that find_nodes() has for processes.
  host::NodeRendezvous meet_as_threads(int rank) const {
    std::vector<int> leaders;
    for (const char node : spec_.nodes) leaders.push_back(static_cast<int>(spec_.nodes.find(node)));
    host::NodeRendezvous rendezvous;
    rendezvous.layout = host::NodeLayout(leaders);
    const auto node = static_cast<std::size_t>(rendezvous.layout.node_of(rank));
    rendezvous.provider = std::make_unique<host::ThreadMemoryProvider>(threads_of_nodes_[node]);
    rendezvous.control = rendezvous.provider->share(
        host::ControlLayout::bytes(rendezvous.layout.size_of_node(static_cast<int>(node))), spec_.timeout);
    return rendezvous;
  }

  GroupSpec spec_;
  std::optional<TuningFile> file_;
  std::shared_ptr<host::ThreadRendezvous> threads_ = std::make_shared<host::ThreadRendezvous>();
  std::array<std::shared_ptr<host::ThreadRendezvous>, 4> threads_of_nodes_ = {
      std::make_shared<host::ThreadRendezvous>(), std::make_shared<host::ThreadRendezvous>(),
      std::make_shared<host::ThreadRendezvous>(), std::make_shared<host::ThreadRendezvous>()};
#ifdef STUB_NCCL
  mutable std::vector<std::unique_ptr<RecordingDevice>> devices_;  // by rank; they outlive the ranks
#endif
  std::shared_ptr<TableStore> store_ = std::make_shared<TableStore>();
};

// The error of a rank's body.
struct Outcome {
  std::string kind = "none";  // "mismatch", "timeout", "peer lost", "rendezvous", "error"
  std::string text;
};

inline Outcome outcome_of(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const MismatchError& error) {
    return {"mismatch", error.what()};
  } catch (const TimeoutError& error) {
    return {"timeout", error.what()};
  } catch (const PeerLost& error) {
    return {"peer lost", error.what()};
  } catch (const RendezvousError& error) {
    return {"rendezvous", error.what()};
  } catch (const std::exception& error) {
    return {"error", error.what()};
  }
}

// Runs every rank in a thread and returns each one's error, including that of joining. If this process is one rank,
// returns its error.
inline std::vector<Outcome> outcomes_of_threads(const GroupSpec& spec, const std::function<void(Rank&)>& body) {
  const Meeting rendezvous(spec);
  if (is_started_as_rank(spec.wire)) {
    return {outcome_of([&] {
      Rank rank = rendezvous.join(started_job().place.rank);
      body(rank);
    })};
  }
  std::vector<Outcome> outcomes(static_cast<std::size_t>(spec.ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < spec.ranks; ++r)
    threads.emplace_back([&, r] {
      outcomes[static_cast<std::size_t>(r)] = outcome_of([&] {
        Rank rank = rendezvous.join(r);
        body(rank);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline void run_threads(const GroupSpec& spec, const std::function<void(Rank&)>& body) {
  const auto outcomes = outcomes_of_threads(spec, body);
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    EXPECT_EQ(outcomes[r].kind, "none") << "rank " << r << ": " << outcomes[r].text;
}

}  // namespace lockstep::testing
