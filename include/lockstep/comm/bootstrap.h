// The rank and the world of this process, read from the environment. A pure function of a variable look-up parses it
// into plain data, so that tests need no processes.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/place.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The way in which a rank finds the others.
struct JobEnvironment {
  enum class Kind {
    kAlone,       // nothing set: rank 0 of 1
    kAddress,     // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun, lockrun and Kubernetes set them; srun on
                  // several machines
    kOneMachine,  // mpirun, mpiexec or srun on one machine: the ranks meet on an abstract socket named after the job's
                  // id
    kMpi,         // mpirun on several: MPI carries rank 0's address and the token
  };
  Kind kind = Kind::kAlone;
  Place place;
  std::string master_host;        // kAddress
  std::uint16_t master_port = 0;  // kAddress
  // kAddress: the variables that host and port come from, for messages.
  std::string host_source = env::kMasterAddr, port_source = env::kMasterPort;
  bool store_is_hosted = false;  // lockrun (or spawn) serves the store already; else rank 0 does
  int attempt = 0;               // lockrun --max-restarts: how often it has restarted the job,
  std::string attempt_id;        // and what only this attempt has; else empty
  // kAddress, rank 0: MASTER_ADDR may be a name that only the other ranks resolve to this one, as with a Kubernetes
  // service or a cluster's node.
  bool master_is_named_for_others = false;
  // kOneMachine: unique among the jobs of this machine. kAddress under srun: the job to which the store must belong.
  std::string job_id;
  std::string token;      // from LOCKSTEP_TOKEN or LOCKSTEP_TOKEN_FILE; may be empty
  bool insecure = false;  // LOCKSTEP_INSECURE=1

  bool operator==(const JobEnvironment&) const = default;
};

using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

// Reads a rank's own variables first, then Open MPI's, then those of Hydra (MPICH, Intel MPI), then srun's. Throws
// InvalidArgument that names the variable: RANK without WORLD_SIZE, a value that is not a number, a rank outside the
// world, a launcher's variables that do not describe a job, ...
JobEnvironment read_job_environment(const EnvironmentLookup& lookup);

// Whether a launcher has made this process a rank. Such a process starts no ranks itself.
bool is_rank(const EnvironmentLookup& lookup);

// A connection to the job's store, which rank 0 may host. The hosted server lives as long as the result.
struct Rendezvous {
  std::shared_ptr<Store> store;
  std::shared_ptr<StoreServer> server;  // null when another process hosts it
  std::string token;                    // kOneMachine, kMpi: made by rank 0 and sent to the others
  std::string advertise_address;        // numeric address at which peers reach this rank
};
// Connects to the job's store, or first hosts it; blocks for at most `timeout`. Throws RendezvousError whose message
// begins with this rank and names the address, port or job.
Rendezvous rendezvous(const JobEnvironment& job, std::chrono::milliseconds timeout);

}  // namespace lockstep
#pragma GCC visibility pop
