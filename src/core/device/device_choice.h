// Which device a rank computes on: what was asked for, what there is, and the rule between them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/core/device/gpu.h"
#include "src/core/memory/memory_policy.h"

namespace lockstep {

inline constexpr int kMaxShare = 64;  // ranks on one GPU

struct DeviceChoice {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::optional<int> ordinal = {};  // of kCuda: this GPU; none: that of the local rank

  bool operator==(const DeviceChoice&) const = default;
};

// LOCKSTEP_DEVICE: "auto", "cpu", "cuda", "cuda:N". Throws InvalidArgument.
DeviceChoice parse_device_choice(const std::string& text);

struct GpuSearch {
  std::vector<cuda::Gpu> gpus;
  std::string why_none;  // when there are none
};

struct GpuSources {
  bool named = false;                // LOCKSTEP_CUDA_LIBRARY says which CUDA part: then it is loaded in any case
  std::function<bool()> has_driver;  // cheap: the CUDA part takes a second to load
  std::function<std::vector<cuda::Gpu>()> ask_driver;  // loads the CUDA part; throws NoGpu and Error
};

// Throws Error when there is a driver, or a named CUDA part, and it cannot be used.
GpuSearch find_gpus(const GpuSources& sources);
GpuSearch find_gpus();  // of this machine; makes no CUDA context

// The same answer where it is clear at once: no CUDA part is named, the kernel shows none of the `traces` that a driver
// leaves, and its library is not installed. A library alone is no such case: a GPU's first use may load the rest.
// Absent: find_gpus() has to look.
std::optional<GpuSearch> clearly_no_gpus(const GpuSources& sources, const std::vector<std::filesystem::path>& traces);
std::optional<GpuSearch> clearly_no_gpus();  // of this machine; where there is a driver it stays unopened

// The GPU of a rank to which no launcher gave one: `share` ranks take each. `own`: CUDA_VISIBLE_DEVICES is set, and so
// a single GPU may be what the job's manager (srun --gpus-per-task) gave to this rank alone. Throws InvalidArgument
// when there are too few.
int gpu_of_local_rank(int local_rank, int gpus, int share, bool own);

// Of a GPU that `share` ranks use: a tenth stays for contexts and libraries.
std::size_t memory_share(std::size_t gpu_bytes, int share);

// LOCKSTEP_GPU_MEMORY, or the right policy when it is not set: a rank's share, or as much as is needed.
MemoryPolicy memory_policy_of(const std::optional<std::string>& asked, std::size_t gpu_bytes, int share);

}  // namespace lockstep
