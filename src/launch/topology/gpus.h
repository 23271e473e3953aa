// The GPU of each rank of this machine. Pure functions: the list of GPUs comes in, the ranks' environment comes out.
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
    kAuto,  // GPUs when there are any, else the CPU
    kNone,
    kAll,
    kList,
  };
  Kind kind = Kind::kAuto;
  std::vector<std::string> names = {};  // of kList: ordinals, or UUIDs and beginnings of them
  int share = 1;                        // ranks on one GPU
  bool by_device = false;               // LOCKSTEP_DEVICE asks, not --gpus

  bool operator==(const GpuRequest&) const = default;
};

// "auto", "none", "all", "0,1", "GPU-8c9f,GPU-1b2e". Throws InvalidArgument that shows the forms.
GpuRequest parse_gpus(const std::string& text, int share);

// The request when --gpus is not given: LOCKSTEP_DEVICE's words, by which ranks without a launcher go.
GpuRequest request_by_device(const std::string& device, int share);

struct GpuAssignment {
  std::vector<int> chosen;                                  // ordinals that may be used; empty: the CPU
  std::vector<std::optional<int>> gpu_of_rank;              // by local rank: an ordinal; none: the CPU
  std::vector<std::vector<EnvironmentChange>> environment;  // by local rank
  std::string remark;  // one line for the user when the choice was the launcher's and not obvious; may be empty
};

// The ranks that want GPUs.
struct LocalRanks {
  int count = 1;
  int first = 0;                           // the first one's number in the job
  std::optional<std::string> memory = {};  // the user's LOCKSTEP_GPU_MEMORY, which stays as it is
  int servers = 0;                         // the last so many want none: they hold parameters on the CPU
};

// Ranks take the GPUs in order, `share` of them one. `why_none` says why `gpus` is empty, if it is. Throws
// InvalidArgument with the remedy: a GPU that is not there, more ranks than places, GPUs asked for where there are
// none.
GpuAssignment assign_gpus(const GpuRequest& request, const std::vector<Gpu>& gpus, const std::string& why_none,
                          const LocalRanks& ranks);

// How many ranks the GPUs that may be used take; 0: the CPU computes.
int places_on_gpus(const GpuRequest& request, const std::vector<Gpu>& gpus);

// A line a GPU that may be used:
// "gpu 0: NVIDIA H200, 141.0 GB, GPU-8c9f...: logical devices 0, 1 with 63.4 GB each (ranks 0, 1)".
std::string describe_gpus(const std::vector<Gpu>& gpus, const GpuAssignment& assignment, int share,
                          const LocalRanks& ranks);

// The same of a CPU that is shared: "cpu: 8 cores: logical devices 0, 1 with 4 cores each (ranks 0, 1)\n"; `bind`: each
// has its own.
std::string describe_cpu(std::size_t cores, int share, const LocalRanks& ranks, bool bind);

}  // namespace lockstep::launch
