// Assigns the GPUs of this machine to the ranks. Pure functions: from the list of GPUs to the ranks' environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/core/device/gpu.h"
#include "src/launch/supervise/rank_environment.h"

namespace lockstep::launch {

using cuda::Gpu;

inline constexpr double kGigabyte = 1e9;  // bytes, in texts on memory

struct GpuRequest {
  enum class Kind {
    kAuto,  // GPUs if there are any, else the CPU
    kNone,
    kAll,
    kList,
  };
  Kind kind = Kind::kAuto;
  std::vector<std::string> names = {};  // for kList: ordinals, or UUIDs or their beginnings
  int share = 1;                        // ranks on each GPU
  bool by_device = false;               // the request is LOCKSTEP_DEVICE's, not that of --gpus

  bool operator==(const GpuRequest&) const = default;
};

// Parses "auto", "none", "all", "0,1", "GPU-8c9f,GPU-1b2e". Throws InvalidArgument with the valid forms.
GpuRequest parse_gpus(const std::string& text, int share);

// The request without --gpus: the value of LOCKSTEP_DEVICE, which ranks without a launcher also use.
GpuRequest request_by_device(const std::string& device, int share);

struct GpuAssignment {
  std::vector<int> chosen;                                  // ordinals of the usable GPUs; empty: the CPU
  std::vector<std::optional<int>> gpu_of_rank;              // by local rank: an ordinal; nullopt: the CPU
  std::vector<std::vector<EnvironmentChange>> environment;  // by local rank
  std::string remark;  // a line for the user if the launcher's choice is not obvious; may be empty
};

// The ranks for which GPUs are chosen.
struct LocalRanks {
  int count = 1;
  int first = 0;                           // the rank of the first one in the job
  std::optional<std::string> memory = {};  // the user's LOCKSTEP_GPU_MEMORY, which is kept
  int servers = 0;  // number of ranks, the last ones, that hold parameters on the CPU and need no GPU
};

// Assigns the GPUs in order, `share` ranks to each. `why_none` says why `gpus` is empty, if it is. Throws
// InvalidArgument with the remedy: a GPU that does not exist, more ranks than places, or GPUs requested where there are
// none.
GpuAssignment assign_gpus(const GpuRequest& request, const std::vector<Gpu>& gpus, const std::string& why_none,
                          const LocalRanks& ranks);

// The number of ranks for which the usable GPUs have room; 0: the CPU computes.
int places_on_gpus(const GpuRequest& request, const std::vector<Gpu>& gpus);

// One line for each usable GPU:
// "gpu 0: NVIDIA H200, 141.0 GB, GPU-8c9f...: logical devices 0, 1 with 63.4 GB each (ranks 0, 1)".
std::string describe_gpus(const std::vector<Gpu>& gpus, const GpuAssignment& assignment, int share,
                          const LocalRanks& ranks);

// The same for a shared CPU: "cpu: 8 cores: logical devices 0, 1 with 4 cores each (ranks 0, 1)\n". `bind`: each has
// its own cores.
std::string describe_cpu(std::size_t cores, int share, const LocalRanks& ranks, bool bind);

}  // namespace lockstep::launch
