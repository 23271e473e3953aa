#include "src/comm/rendezvous/hydra.h"

#include <sys/socket.h>

#include <climits>
#include <fstream>
#include <iterator>
#include <sstream>

namespace lockstep::hydra {

namespace {

constexpr const char* kRank = "PMI_RANK";
constexpr const char* kSize = "PMI_SIZE";
constexpr const char* kLocalRank = "MPI_LOCALRANKID";
constexpr const char* kLocalSize = "MPI_LOCALNRANKS";
constexpr const char* kSocket = "PMI_FD";

long number(const EnvironmentReader& reader, const char* name, long low) {
  if (const auto value = reader.integer(name, low, kMaxRanks)) return *value;
  throw InvalidArgument(
      "environment: {} or {} is set, as mpiexec of MPICH and of Intel MPI does, but {} is not: start without "
      "-pmi-port, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
      kLocalRank, kLocalSize, name);
}

// The time at which the process began, in ticks since the machine's start; "" if it cannot be read. It distinguishes
// two processes that had the same pid.
std::string begin_of(pid_t process) {
  constexpr int kFieldsBefore = 19;  // from the state on
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> field;
  return fields >> field ? field : "";
}

// One proxy for each job and machine holds the other ends of these sockets.
std::string id_of_job(const EnvironmentReader& reader) {
  const auto fd = reader.integer(kSocket, 0, INT_MAX);
  ucred proxy{};
  socklen_t size = sizeof proxy;
  const bool has_peer = fd && ::getsockopt(static_cast<int>(*fd), SOL_SOCKET, SO_PEERCRED, &proxy, &size) == 0;
  if (!has_peer || proxy.pid <= 0)
    throw InvalidArgument(
        "environment: {} is set, but no socket of mpiexec's at {}={} identifies this job, so that two jobs on this "
        "machine could meet: {}, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        kRank, kSocket, reader.text(kSocket).value_or(""),
        has_peer ? "mpiexec's proxy is outside of this container's process namespace; start mpiexec in the container"
                 : "keep that file descriptor open");
  return fmt::format("hydra-{}-{}", proxy.pid, begin_of(proxy.pid));
}

}  // namespace

bool is_rank(const EnvironmentReader& reader) { return reader.text(kLocalRank) || reader.text(kLocalSize); }

void read_job(const EnvironmentReader& reader, JobEnvironment& job) {
  job.place.rank = static_cast<int>(number(reader, kRank, 0));
  job.place.world_size = static_cast<int>(number(reader, kSize, 1));
  job.place.local_rank = static_cast<int>(number(reader, kLocalRank, 0));
  job.place.local_world_size = static_cast<int>(number(reader, kLocalSize, 1));
  if (job.place.world_size == 1) {
    job.kind = JobEnvironment::Kind::kAlone;
    return;
  }
  if (job.place.local_world_size == job.place.world_size) {
    job.kind = JobEnvironment::Kind::kOneMachine;
    job.job_id = id_of_job(reader);
    return;
  }
  const auto host = reader.text(env::kMasterAddr);
  if (!host)
    throw InvalidArgument(
        "environment: {}={} but {}={}: mpiexec started ranks on several machines, and nothing tells them how to meet: "
        "set {} (rank 0's machine), {} and LOCKSTEP_TOKEN for all of them (mpiexec -genv)",
        kSize, job.place.world_size, kLocalSize, job.place.local_world_size, env::kMasterAddr, env::kMasterPort);
  job.kind = JobEnvironment::Kind::kAddress;
  job.master_host = *host;
  job.master_port = static_cast<std::uint16_t>(reader.required(env::kMasterPort, env::kMasterAddr, 1, kMaxPort));
}

}  // namespace lockstep::hydra
