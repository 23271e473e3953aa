// Which GPU each rank of this machine computes on. Pure functions: what there is comes in, the ranks' environment comes out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launch {

// A GPU that this process may use, at its ordinal among them: what CUDA_VISIBLE_DEVICES leaves, in its order.
struct VisibleGpu {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-8c9f..."
  std::size_t memory_bytes = 0;
};

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

  bool operator==(const GpuRequest&) const = default;
};

// "auto", "none", "all", "0,1", "GPU-8c9f,GPU-1b2e". Throws InvalidArgument that shows the forms.
GpuRequest parse_gpus(const std::string& text, int share);

struct GpuAssignment {
  std::vector<std::optional<int>> gpu_of_rank;                                // by local rank: an ordinal; none: the CPU
  std::vector<std::vector<std::pair<std::string, std::string>>> environment;  // by local rank: variables to set
  std::string remark;  // one line for the user when the choice was the launcher's and not obvious; may be empty
};

// Ranks take the GPUs in order, `share` of them one. `why_none` says why `gpus` is empty, if it is. Throws InvalidArgument with the remedy:
// a GPU that is not there, more ranks than places, GPUs asked for where there are none.
GpuAssignment assign_gpus(const GpuRequest& request, const std::vector<VisibleGpu>& gpus, const std::string& why_none, int ranks);

// "gpu 0: NVIDIA H200, 141.0 GB, GPU-8c9f...: logical devices 0, 1 with 70.5 GB each", a line a GPU.
std::string describe_gpus(const std::vector<VisibleGpu>& gpus, int share);

}  // namespace lockstep::launch
