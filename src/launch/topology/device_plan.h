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
  std::string
      fault;  // why the GPUs that there may be cannot be used: an error once the nodes have met and can hear of it
  std::vector<int> cores;  // inherited
  bool bind = true;
  std::vector<NearDevice> near;  // by GPU; empty without GPUs, or when nothing is to be bound
  std::string memory_obstacle;   // why ranks' memory is not placed, if it is not
  int quota = 0;                 // processor time for all ranks here, in cores; 0: as much as the cores have
};

// Looks for GPUs unless none is wanted, in a process of its own. Throws InvalidArgument for a request that makes no
// sense.
DeviceFacts look_for_devices(const LaunchSpec& spec);

// How many ranks `spec` asks for: its number, or a rank for each GPU (as --gpus and --share-gpu count them) or core.
// Throws InvalidArgument where GPUs are to be counted and there are none.
int count_ranks(const LaunchSpec& spec, const DeviceFacts& facts);

struct DevicePlan {
  std::vector<std::vector<EnvironmentChange>> environment;  // by local rank
  std::vector<std::vector<int>> cores;                      // by local rank; empty: not bound
  std::vector<int> memory_nodes;                            // by local rank; -1: the system's choice
  int threads = 1;                                          // of each rank
  std::vector<std::string> remarks;                         // lines for the user
};

// A pure function. Throws what assign_gpus throws, and Error for `fault`.
DevicePlan plan_devices(const DeviceFacts& facts, const LocalRanks& ranks);

}  // namespace lockstep::launch
