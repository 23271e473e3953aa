#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/host_names.h"
#include "src/comm/rendezvous/environment_reader.h"
#include "src/comm/rendezvous/hydra.h"
#include "src/comm/rendezvous/slurm.h"

namespace lockstep {

namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* kWhitespace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kWhitespace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kWhitespace) - begin + 1);
}

// Whitespace around the token, as editors and mounted secrets add it, is removed.
std::string read_token(const EnvironmentReader& reader) {
  if (const auto token = reader.text(env::kToken)) {
    if (trimmed(*token).empty()) throw InvalidArgument("environment: {} is set to whitespace", env::kToken);
    return trimmed(*token);
  }
  const auto path = reader.text(env::kTokenFile);
  if (!path) return "";
  std::ifstream file(*path);
  std::stringstream content;
  // Opening a folder succeeds; only reading it fails.
  if (file && file.peek() != std::ifstream::traits_type::eof()) content << file.rdbuf();
  if (!file.is_open() || file.bad())
    throw InvalidArgument("environment: {}={} cannot be read: {}; it names the file that holds the job's token",
                          env::kTokenFile, *path, std::strerror(errno));
  const std::string token = trimmed(content.str());
  if (token.empty())
    throw InvalidArgument("environment: {}={} is empty: it must contain the job's token", env::kTokenFile, *path);
  return token;
}

void check_place(const Place& place) {
  if (place.rank >= place.world_size)
    throw InvalidArgument("environment: rank {} does not exist in a world of {}: ranks count from 0", place.rank,
                          place.world_size);
  if (place.local_rank >= place.local_world_size)
    throw InvalidArgument("environment: local rank {} does not exist among {} local ranks", place.local_rank,
                          place.local_world_size);
}

// torchrun's agent serves its own store at MASTER_PORT and tells its ranks not to serve one there: ours uses the next
// port.
void leave_port_to_torchruns_agent(const EnvironmentReader& reader, JobEnvironment& job) {
  if (job.store_is_hosted || reader.text(env::kTorchrunsStore) != "True") return;
  if (job.master_port == kMaxPort)
    throw InvalidArgument(
        "environment: {}={} is the port of torchrun's agent, and there is no next port for Lockstep's store",
        env::kMasterPort, job.master_port);
  job.port_source = fmt::format("the one after {}={}, which torchrun's agent holds", env::kMasterPort, job.master_port);
  ++job.master_port;
}

void read_address_job(const EnvironmentReader& reader, JobEnvironment& job) {
  job.kind = JobEnvironment::Kind::kAddress;
  job.place.world_size = static_cast<int>(reader.required(env::kWorldSize, env::kRank, 1, kMaxRanks));
  job.place.rank = static_cast<int>(reader.required(env::kRank, env::kWorldSize, 0, kMaxRanks));
  // Kubernetes' operators set no LOCAL_RANK: there is one rank in each container.
  job.place.local_rank = static_cast<int>(reader.integer(env::kLocalRank, 0, kMaxRanks).value_or(0));
  job.place.local_world_size =
      static_cast<int>(reader.integer(env::kLocalWorldSize, 1, kMaxRanks).value_or(job.place.local_rank + 1));
  check_place(job.place);
  job.store_is_hosted = reader.integer(env::kStoreHosted, 0, 1).value_or(0) == 1;
  if (job.place.world_size == 1 && !job.store_is_hosted) {
    job.kind = JobEnvironment::Kind::kAlone;
    return;
  }
  const auto host = reader.text(env::kMasterAddr);
  if (!host)
    throw InvalidArgument("environment: {} is set but {} is not: it names the machine of rank 0", env::kRank,
                          env::kMasterAddr);
  job.master_host = without_brackets(*host);
  job.master_port = static_cast<std::uint16_t>(reader.required(env::kMasterPort, env::kMasterAddr, 1, kMaxPort));
  if (job.store_is_hosted) {
    job.attempt_id = reader.text(env::kAttempt).value_or("");
    job.attempt = static_cast<int>(reader.integer(env::kRestartCount, 0, std::numeric_limits<int>::max()).value_or(0));
    job.host_source = job.port_source = "its launcher's choice";
    if (const auto port = reader.integer(env::kStorePort, 1, kMaxPort))
      job.master_port = static_cast<std::uint16_t>(*port);
  }
  leave_port_to_torchruns_agent(reader, job);
  // Assumes a pod for each rank: users who start several in one pod must set LOCAL_RANK.
  job.master_is_named_for_others =
      reader.text("KUBERNETES_SERVICE_HOST") && !reader.text(env::kLocalRank) && !reader.text(env::kLocalWorldSize);
}

void read_open_mpi_job(const EnvironmentReader& reader, JobEnvironment& job) {
  job.kind = JobEnvironment::Kind::kOneMachine;
  constexpr const char* kRankName = "OMPI_COMM_WORLD_RANK";
  job.place.rank = static_cast<int>(reader.required(kRankName, "OMPI_COMM_WORLD_SIZE", 0, kMaxRanks));
  job.place.world_size = static_cast<int>(reader.required("OMPI_COMM_WORLD_SIZE", kRankName, 1, kMaxRanks));
  job.place.local_rank = static_cast<int>(reader.required("OMPI_COMM_WORLD_LOCAL_RANK", kRankName, 0, kMaxRanks));
  job.place.local_world_size = static_cast<int>(reader.required("OMPI_COMM_WORLD_LOCAL_SIZE", kRankName, 1, kMaxRanks));
  check_place(job.place);
  if (job.place.local_world_size != job.place.world_size) {
    const auto host = reader.text(env::kMasterAddr);
    job.kind = host ? JobEnvironment::Kind::kAddress : JobEnvironment::Kind::kMpi;
    if (!host) return;
    job.master_host = without_brackets(*host);
    job.master_port = static_cast<std::uint16_t>(reader.required(env::kMasterPort, env::kMasterAddr, 1, kMaxPort));
    return;
  }
  // Which of these exist depends on Open MPI's version; together they differ between any two jobs on a machine.
  std::string identity;
  bool has_name = false;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2",
                           "PMIX_SERVER_URI21", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4", "PMIX_SERVER_URI41"}) {
    const auto value = reader.text(name);
    has_name = has_name || value;
    identity += std::string(name) + "=" + value.value_or("") + "\n";
  }
  if (!has_name)
    throw InvalidArgument(
        "environment: {} is set, but nothing names the job (PMIX_NAMESPACE, OMPI_MCA_orte_hnp_uri, PMIX_SERVER_URI*), "
        "so that two jobs on this machine could meet: start with mpirun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT",
        kRankName);
  job.job_id = crypto::hex(crypto::sha256(std::as_bytes(std::span(identity)))).substr(0, 32);
}

void read_slurm_job(const EnvironmentReader& reader, JobEnvironment& job) {
  slurm::read_job(reader, job);
  check_place(job.place);
  job.master_host = without_brackets(job.master_host);
  // A machine's own name may resolve to loopback on the machine itself.
  job.master_is_named_for_others = job.kind == JobEnvironment::Kind::kAddress;
}

void read_hydra_job(const EnvironmentReader& reader, JobEnvironment& job) {
  hydra::read_job(reader, job);
  check_place(job.place);
  job.master_host = without_brackets(job.master_host);
}

// A variable that an unsupported launcher sets for each of its processes. Running each as a world of one would give a
// wrong result.
struct Sign {
  const char* rank;
  const char* size;  // null: the launcher does not set it
  const char* launcher;
  bool is_sruns_too = false;  // srun's MPI plugins set it, too
};
constexpr Sign kSigns[] = {{"PMI_RANK", "PMI_SIZE", "a launcher that speaks PMI", true},
                           {"PMI_ID", nullptr, "a launcher that speaks PMI", true},
                           {"PMIX_RANK", nullptr, "a launcher that speaks PMIx", true},
                           {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH2's mpiexec"},
                           {"PALS_RANKID", nullptr, "Cray PALS"},
                           {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "jsrun"},
                           {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "Flux"}};

// Returns null if there is none. Variables that srun also sets are ignored in a step of it, unless another launcher is
// between srun and this process.
const Sign* sign_of_unknown_launcher(const EnvironmentReader& reader) {
  const bool has_srun = slurm::is_lone_task(reader) || slurm::is_task(reader);
  for (const Sign& sign : kSigns) {
    if (sign.is_sruns_too && has_srun) continue;
    if (reader.text(sign.rank) && (sign.size == nullptr || reader.text(sign.size) != "1")) return &sign;
  }
  return nullptr;
}

[[noreturn]] void refuse(const Sign& sign, const EnvironmentReader& reader) {
  throw InvalidArgument(
      "environment: {}={} shows that {}, which Lockstep does not support, started this process as one of several: set "
      "{}, {}, {}, {} and {} from its variables (in a script that it starts), or {}=0 {}=1 for a world of one",
      sign.rank, *reader.text(sign.rank), sign.launcher, env::kRank, env::kWorldSize, env::kLocalRank, env::kMasterAddr,
      env::kMasterPort, env::kRank, env::kWorldSize);
}

// A variable that Kubeflow's Trainer sets in a pod so that torchrun makes several ranks of it. Null: no such variable
// requests more than one rank.
const char* variable_for_torchrun(const EnvironmentReader& reader) {
  for (const char* name : {"PET_NNODES", "PET_NPROC_PER_NODE"}) {
    const auto value = reader.text(name);
    if (value && *value != "1" && *value != "1:1") return name;
  }
  return nullptr;
}

[[noreturn]] void refuse_variable_for_torchrun(const char* name, const EnvironmentReader& reader) {
  throw InvalidArgument(
      "environment: {}={} is for a launcher, and this process was started without one, so that each would be a world "
      "of its own. Start it by lockrun, which understands the PET_ variables (command: [lockrun, ./train]), or set "
      "{}=0 {}=1 "
      "for a world of one",
      name, *reader.text(name), env::kRank, env::kWorldSize);
}

using ReadJob = void (*)(const EnvironmentReader&, JobEnvironment&);

// The launcher that made this process a rank; null: no known one.
ReadJob launcher_of(const EnvironmentReader& reader) {
  if (reader.text(env::kRank)) return read_address_job;
  if (reader.text("OMPI_COMM_WORLD_RANK") || reader.text("OMPI_COMM_WORLD_SIZE")) return read_open_mpi_job;
  if (hydra::is_rank(reader)) return read_hydra_job;
  if (slurm::is_task(reader)) return read_slurm_job;
  if (reader.text(env::kWorldSize) && !slurm::is_lone_task(reader)) return read_address_job;
  return nullptr;
}

// PyTorch's batch scripts export only WORLD_SIZE and leave the rest to srun.
void check_lone_world_size(const EnvironmentReader& reader, const JobEnvironment& job) {
  const auto stated = reader.integer(env::kWorldSize, 1, kMaxRanks);
  if (!stated || *stated == job.place.world_size || reader.text(env::kRank)) return;
  throw InvalidArgument("environment: {}={}, but this rank's launcher has started {} ranks: unset {}, or start as many",
                        env::kWorldSize, *stated, job.place.world_size, env::kWorldSize);
}

}  // namespace

JobEnvironment read_job_environment(const EnvironmentLookup& lookup) {
  const EnvironmentReader reader(lookup);
  JobEnvironment job;
  job.token = read_token(reader);
  job.insecure = reader.integer(env::kInsecure, 0, 1).value_or(0) == 1;
  const ReadJob read = launcher_of(reader);
  const Sign* const sign = read == nullptr || read == read_slurm_job ? sign_of_unknown_launcher(reader) : nullptr;
  if (sign != nullptr) refuse(*sign, reader);
  if (const char* name = variable_for_torchrun(reader); name != nullptr && read == nullptr)
    refuse_variable_for_torchrun(name, reader);
  if (read != nullptr) read(reader, job);
  check_lone_world_size(reader, job);
  return job;
}

bool is_rank(const EnvironmentLookup& lookup) {
  const EnvironmentReader reader(lookup);
  return reader.text(env::kRank) || reader.text("OMPI_COMM_WORLD_RANK") || hydra::is_rank(reader) ||
         slurm::is_task(reader) || sign_of_unknown_launcher(reader) != nullptr ||
         variable_for_torchrun(reader) != nullptr;
}

}  // namespace lockstep
