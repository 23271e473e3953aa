// The agreements of the ranks of an NCCL communicator, made by the store before the communicator.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep::nccl {

// Rank 0's id. An error of rank 0 is thrown on all.
ncclUniqueId agree_on_id(const BackendContext& context, const Api& api);

// Which GPU a rank has, and how many ranks it lets use that one.
struct GpuOfRank {
  std::string identity;
  int most_ranks = 1;
};
// Every rank's, by rank: this rank's device and LOCKSTEP_SHARE_GPU. Collective.
std::vector<GpuOfRank> gather_gpus(const BackendContext& context);

// Throws InvalidArgument, the same on all ranks, when more ranks use a GPU than it may have: NCCL would fail without
// saying which.
void check_sharing(const std::vector<GpuOfRank>& gpus);

// The environment that NCCL of that version needs to let the ranks share GPUs as they do; empty where they do not.
// `machine`: this rank's, as NCCL would tell it from others.
std::vector<std::pair<std::string, std::string>> environment_for_sharing(const std::vector<GpuOfRank>& gpus, int rank,
                                                                         int nccl_version, const std::string& machine);

// Sets it, where it is not set: only where ranks share a GPU does the environment change while the program runs.
void prepare_environment(const std::vector<GpuOfRank>& gpus, int rank, int nccl_version);

}  // namespace lockstep::nccl
