// The agreements that the ranks of an NCCL communicator make through the store before it is created.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep::nccl {

// Rank 0's id. An error of rank 0 is thrown on all ranks.
ncclUniqueId agree_on_id(const BackendContext& context, const Api& api);

// The GPU of a rank, the number of ranks that it allows to use it, and what decides about the bits of results.
struct GpuOfRank {
  std::string identity;
  int most_ranks = 1;           // LOCKSTEP_SHARE_GPU
  std::string algorithms = {};  // LOCKSTEP_DETERMINISTIC and NCCL_ALGO
};
// Every rank's, by rank. Collective.
std::vector<GpuOfRank> gather_gpus(const BackendContext& context);

// Throws InvalidArgument, the same on all ranks, if more ranks use a GPU than are allowed: NCCL would fail without
// naming it.
void check_sharing(const std::vector<GpuOfRank>& gpus);

// Throws InvalidArgument, the same on all ranks, if LOCKSTEP_DETERMINISTIC or NCCL_ALGO differs between them.
void check_algorithms(const std::vector<GpuOfRank>& gpus);

// The environment that this version of NCCL needs for the ranks to share GPUs as they do; empty if none is needed.
// `machine` is the name by which NCCL would distinguish this rank's machine.
std::vector<std::pair<std::string, std::string>> environment_for_sharing(const std::vector<GpuOfRank>& gpus, int rank,
                                                                         int nccl_version, const std::string& machine);

// Sets those variables that are not set. The environment changes while the program runs only if ranks share a GPU.
void prepare_environment(const std::vector<GpuOfRank>& gpus, int rank, int nccl_version);

}  // namespace lockstep::nccl
