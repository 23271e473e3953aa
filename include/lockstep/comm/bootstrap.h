// The rank and the world of this process: the job's environment, read into plain data by a pure function of a look-up,
// tested without processes.
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

// How a rank finds the others.
struct JobEnvironment {
  enum class Kind {
    kAlone,    // nothing set: rank 0 of 1
    kAddress,  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun's contract, lockrun's, Kubernetes', and srun's on
               // several machines
    kOneMachine,  // mpirun, mpiexec or srun on one: the job's id stands in for an address, ranks meet on an abstract
                  // socket
    kMpi,         // mpirun on several: MPI carries rank 0's address and the token
  };
  Kind kind = Kind::kAlone;
  Place place;
  std::string master_host;        // kAddress
  std::uint16_t master_port = 0;  // kAddress
  // kAddress: the source of host and port, for messages.
  std::string host_source = env::kMasterAddr, port_source = env::kMasterPort;
  bool store_is_hosted = false;  // lockrun (or spawn) serves the store already; else rank 0 does
  // kAddress, rank 0: MASTER_ADDR may be a name for the others alone, as a Kubernetes service or a cluster's node has.
  bool master_is_named_for_others = false;
  std::string
      job_id;  // kOneMachine: unique among the jobs of this machine; kAddress under srun: whose the store must be
  std::string token;      // from LOCKSTEP_TOKEN or LOCKSTEP_TOKEN_FILE; may be empty
  bool insecure = false;  // LOCKSTEP_INSECURE=1

  bool operator==(const JobEnvironment&) const = default;
};

using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

// A rank's own variables come first, then Open MPI's, then those of Hydra (MPICH, Intel MPI), then srun's. Throws
// InvalidArgument that names the variable: RANK without WORLD_SIZE, not a number, rank outside the world, a launcher's
// whose job is not understood, ...
JobEnvironment read_job_environment(const EnvironmentLookup& lookup);

// A launcher has made this process a rank: it starts none itself.
bool is_rank(const EnvironmentLookup& lookup);

// Connects to (or first hosts) the job's store. The server, when this rank hosts one, lives as long as the result.
struct Rendezvous {
  std::shared_ptr<Store> store;
  std::shared_ptr<StoreServer> server;  // null when another process hosts it
  std::string token;                    // kOneMachine, kMpi: made by rank 0 and handed over
  std::string advertise_address;        // numeric address of this rank for its peers
};
// Throws RendezvousError that begins with this rank and names the address, port or job.
Rendezvous rendezvous(const JobEnvironment& job, std::chrono::milliseconds timeout);

}  // namespace lockstep
#pragma GCC visibility pop
