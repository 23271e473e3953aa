// Chooses the device on which a rank computes, from the user's request and the hardware.
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

inline constexpr int kMaxShare = 64;  // ranks that share one GPU

struct DeviceChoice {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::optional<int> ordinal = {};  // for kCuda: this GPU; empty: that of the local rank

  bool operator==(const DeviceChoice&) const = default;
};

// Parses LOCKSTEP_DEVICE: "auto", "cpu", "cuda", "cuda:N". Throws InvalidArgument.
DeviceChoice parse_device_choice(const std::string& text);

struct GpuSearch {
  std::vector<cuda::Gpu> gpus;
  std::string why_none;  // the reason if there are none
};

struct GpuSources {
  bool named = false;                // LOCKSTEP_CUDA_LIBRARY names the CUDA part: then it is always loaded
  std::function<bool()> has_driver;  // cheap, while loading the CUDA part takes a second
  std::function<std::vector<cuda::Gpu>()> query_driver;  // loads the CUDA part; throws NoGpu and Error
};

// Throws Error if there is a driver, or a named CUDA part, that cannot be used.
GpuSearch find_gpus(const GpuSources& sources);
GpuSearch find_gpus();  // for this machine; creates no CUDA context

// The same answer if it is clear without loading the CUDA part: none is named, the system shows none of the `traces`
// that a driver leaves, and the driver's library is not installed. A library alone does not count as clear, because a
// GPU's first use may load the rest. nullopt: find_gpus() has to search.
std::optional<GpuSearch> clearly_no_gpus(const GpuSources& sources, const std::vector<std::filesystem::path>& traces);
std::optional<GpuSearch> clearly_no_gpus();  // for this machine; does not open a driver

// The GPU of a rank to which no launcher assigned one; `share` ranks use each GPU. `own`: CUDA_VISIBLE_DEVICES is set,
// so a single GPU may be the one that the job's manager (srun --gpus-per-task) gave to this rank. Throws
// InvalidArgument if there are too few.
int gpu_of_local_rank(int local_rank, int gpus, int share, bool own);

// The memory for each of `share` ranks on a GPU; a tenth remains for contexts and libraries.
std::size_t memory_share(std::size_t gpu_bytes, int share);

// LOCKSTEP_GPU_MEMORY, or the default policy if it is not set: a rank's share, or as much as is needed.
MemoryPolicy memory_policy_of(const std::optional<std::string>& asked, std::size_t gpu_bytes, int share);

}  // namespace lockstep
