#include "src/core/device/device_choice.h"

#include <dlfcn.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include "lockstep/core/environment.h"
#include "src/core/device/cuda_loader.h"

namespace lockstep {

namespace {

constexpr long kMaxOrdinal = 1023;
constexpr const char* kNoDriver = "no NVIDIA driver is installed (there is no libcuda.so.1)";

// The driver library that the CUDA runtime would load. Opening it has no effect yet.
bool has_driver() {
  static void* const kDriver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return kDriver != nullptr;
}

GpuSources sources_here() {
  return {env::text(env::kCudaLibrary).has_value(), has_driver, [] { return cuda_library().gpus(); }};
}

}  // namespace

DeviceChoice parse_device_choice(const std::string& text) {
  using Kind = DeviceChoice::Kind;
  constexpr std::string_view kNumbered = "cuda:";
  if (text == "auto") return {Kind::kAuto};
  if (text == "cpu" || text == "cpu:0") return {Kind::kCpu};
  if (text == "cuda") return {Kind::kCuda};
  if (!std::string_view(text).starts_with(kNumbered))
    throw InvalidArgument("{}='{}' is invalid: expected auto, cpu, cuda or cuda:N", env::kDevice, text);
  try {
    return {Kind::kCuda,
            static_cast<int>(env::parse_integer(env::kDevice, text.substr(kNumbered.size()), 0, kMaxOrdinal))};
  } catch (const InvalidArgument&) {
    throw InvalidArgument("{}='{}' is invalid: cuda: must be followed by a GPU's number, 0 to {}", env::kDevice, text,
                          kMaxOrdinal);
  }
}

GpuSearch find_gpus(const GpuSources& sources) {
  if (!sources.named && !sources.has_driver()) return {{}, kNoDriver};
  try {
    return {sources.query_driver(), ""};
  } catch (const cuda::NoGpu& none) {
    return {{}, none.what()};
  }
}

GpuSearch find_gpus() { return find_gpus(sources_here()); }

std::optional<GpuSearch> clearly_no_gpus(const GpuSources& sources, const std::vector<std::filesystem::path>& traces) {
  std::error_code failure;
  const bool has_trace = std::any_of(traces.begin(), traces.end(),
                                     [&](const auto& trace) { return std::filesystem::exists(trace, failure); });
  if (sources.named || has_trace || sources.has_driver()) return std::nullopt;
  return GpuSearch{{}, kNoDriver};
}

std::optional<GpuSearch> clearly_no_gpus() {
  return clearly_no_gpus(sources_here(),
                         {"/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg"});  // the last one is WSL's
}

int gpu_of_local_rank(int local_rank, int gpus, int share, bool own) {
  if (gpus == 1 && own && share == 1)
    return 0;  // if it is not the rank's own, the process group names the ranks that share it
  const int ordinal = local_rank / share;
  if (ordinal < gpus) return ordinal;
  throw InvalidArgument(
      "local rank {} has no GPU: this process sees {}, for {} rank{} each. Start as many ranks per machine as it has "
      "GPUs, let several "
      "use one ({}=K; lockrun --share-gpu K), or compute on the CPU with {}=cpu",
      local_rank, gpus, share, share == 1 ? "" : "s", env::kShareGpu, env::kDevice);
}

std::size_t memory_share(std::size_t gpu_bytes, int share) {
  return gpu_bytes / static_cast<std::size_t>(share) / 10 * 9;
}

MemoryPolicy memory_policy_of(const std::optional<std::string>& asked, std::size_t gpu_bytes, int share) {
  if (asked) return parse_memory_policy(env::kGpuMemory, *asked);
  if (share == 1) return {};
  return {MemoryPolicy::Kind::kLimit, memory_share(gpu_bytes, share)};
}

}  // namespace lockstep
