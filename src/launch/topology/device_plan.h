// The devices of each rank of this machine: GPU, cores and threads.
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/launch.h"
#include "src/core/device/device_choice.h"
#include "src/launch/topology/gpus.h"
#include "src/launch/topology/machine.h"

namespace lockstep::launch {

// The user's request, and the devices of this machine.
struct DeviceFacts {
  GpuRequest request;
  GpuSearch found;
  std::string fault;       // why the GPUs cannot be used: thrown once the nodes have joined and can receive the error
  std::vector<int> cores;  // inherited
  bool bind = true;
  std::vector<NearDevice> near;  // by GPU; empty without GPUs, or if nothing is bound
  std::string memory_obstacle;   // why the ranks' memory is not placed; or empty
  int quota = 0;                 // CPU time for all ranks here, in cores; 0: unlimited
};

// Searches for GPUs in a separate process, unless none are requested. Throws InvalidArgument for an invalid request.
DeviceFacts look_for_devices(const LaunchSpec& spec);

// The number of ranks that `spec` requests: a number, or one for each GPU (as counted by --gpus and --share-gpu) or
// core. Throws InvalidArgument if GPUs are to be counted and there are none.
int count_ranks(const LaunchSpec& spec, const DeviceFacts& facts);

struct DevicePlan {
  std::vector<std::vector<EnvironmentChange>> environment;  // by local rank
  std::vector<std::vector<int>> cores;                      // by local rank; empty: not bound
  std::vector<int> memory_nodes;                            // by local rank; -1: the system's choice
  int threads = 1;                                          // of each rank
  std::vector<std::string> remarks;                         // lines for the user
};

// A pure function. Throws the errors of assign_gpus(), and Error for `fault`.
DevicePlan plan_devices(const DeviceFacts& facts, const LocalRanks& ranks);

}  // namespace lockstep::launch
