#include "src/core/device/cuda_library.h"

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "lockstep/core/error.h"
#include "src/core/device/gpu.h"
#include "src/cuda/cuda_device.h"

namespace lockstep::cuda {

namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i)
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned char>(uuid.bytes[i]));
  return text;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

int count_gpus() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return count;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  if (driver == 0) throw NoGpu("no NVIDIA driver is loaded: install one for CUDA {} or newer", version_text(runtime));
  if (result == cudaErrorInsufficientDriver)
    throw Error(
        "the NVIDIA driver is for CUDA {}, this build needs {}: update the driver, or build with an older toolkit",
        version_text(driver), version_text(runtime));
  if (result == cudaErrorNoDevice || count == 0)
    throw NoGpu("the NVIDIA driver sees no GPU: is CUDA_VISIBLE_DEVICES empty or wrong?");
  throw Error("the NVIDIA driver does not respond: {} ({})", cudaGetErrorString(result), cudaGetErrorName(result));
}

std::vector<Gpu> list_gpus() {
  std::vector<Gpu> gpus(static_cast<std::size_t>(count_gpus()));
  for (int ordinal = 0; ordinal < static_cast<int>(gpus.size()); ++ordinal) {
    cudaDeviceProp properties{};
    LOCKSTEP_CUDA(cudaGetDeviceProperties(&properties, ordinal));
    std::array<char, 32> pci{};
    LOCKSTEP_CUDA(cudaDeviceGetPCIBusId(pci.data(), pci.size(), ordinal));
    gpus[static_cast<std::size_t>(ordinal)] = {ordinal,         properties.name,           uuid_text(properties.uuid),
                                               pci.data(),      properties.totalGlobalMem, properties.major,
                                               properties.minor};
  }
  return gpus;
}

// Checks for code for this chip, or PTX that the driver can compile for it; any of our kernels shows that.
void require_code_for(const Gpu& gpu) {
  use_device(gpu.ordinal);
  if (has_code_for_this_device()) return;
  throw Error(
      "cuda:{} ({}) is of architecture sm_{}{}, for which this build has no code: configure with "
      "-Dgpu_architectures={}{}",
      gpu.ordinal, gpu.name, gpu.compute_major, gpu.compute_minor, gpu.compute_major, gpu.compute_minor);
}

class LoadedLibrary : public Library {
 public:
  const std::vector<Gpu>& gpus() override {
    const std::lock_guard lock(mutex_);
    return listed();
  }

  Device& device(int ordinal, const std::string& name, const MemoryPolicy& policy) override {
    const std::lock_guard lock(mutex_);
    const auto& gpus = listed();
    if (ordinal < 0 || ordinal >= static_cast<int>(gpus.size()))
      throw InvalidArgument("cuda:{} does not exist: {} GPU{} visible, numbered from 0", ordinal, gpus.size(),
                            gpus.size() == 1 ? " is" : "s are");
    auto& device = devices_[name];
    if (!device) {
      require_code_for(gpus[static_cast<std::size_t>(ordinal)]);
      device = std::make_unique<CudaDevice>(gpus[static_cast<std::size_t>(ordinal)], name, policy);
    }
    return *device;
  }

 private:
  const std::vector<Gpu>& listed() {
    if (gpus_.empty()) gpus_ = list_gpus();
    return gpus_;
  }

  std::mutex mutex_;
  std::vector<Gpu> gpus_;
  std::map<std::string, std::unique_ptr<CudaDevice>> devices_;  // by name, because logical devices share a GPU
};

}  // namespace

Library& this_library() {
  static auto* const kLibrary = new LoadedLibrary;  // never destroyed: the driver may be gone before static destruction
  return *kLibrary;
}

}  // namespace lockstep::cuda

extern "C" __attribute__((visibility("default"))) lockstep::cuda::Library* lockstep_cuda_library(int version) {
  return version == lockstep::cuda::kLibraryVersion ? &lockstep::cuda::this_library() : nullptr;
}
