// A replacement for liblockstep_cuda.so: FAKE_CUDA determines the kind of machine. It shows the values that reach the
// library, and how programs handle its answers; its devices report that they cannot compute.
#include <csignal>
#include <cstdlib>

#include "src/core/device/cuda_library.h"
#include "src/core/device/gpu.h"

namespace {

using namespace lockstep;

class FakeLibrary : public cuda::Library {
 public:
  explicit FakeLibrary(std::string machine) : machine_(std::move(machine)) {}

  const std::vector<cuda::Gpu>& gpus() override {
    if (machine_ == "no driver") throw cuda::NoGpu("no NVIDIA driver is loaded: install one for CUDA 13.0 or newer");
    if (machine_ == "no gpu")
      throw cuda::NoGpu("the NVIDIA driver sees no GPU: is CUDA_VISIBLE_DEVICES empty or wrong?");
    if (machine_ == "old driver")
      throw Error(
          "the NVIDIA driver is for CUDA 11.4, this build needs 13.0: update the driver, or build with an older "
          "toolkit");
    if (machine_ == "crash") std::raise(SIGKILL);
    return gpus_;
  }

  Device& device(int ordinal, const std::string& name, const MemoryPolicy& policy) override {
    if (machine_ == "no code")
      throw Error(
          "cuda:{} (Fake) is of architecture sm_75, for which this build has no code: configure with "
          "-Dgpu_architectures=75",
          ordinal);
    throw Error("this is the fake {}, kind {} of memory policy, {} bytes", name, static_cast<int>(policy.kind),
                policy.bytes);
  }

 private:
  const std::string machine_;
  const std::vector<cuda::Gpu> gpus_ = {{0, "Fake H200", "GPU-8c9f11", "0000:17:00.0", 100'000'000'000, 9, 0},
                                        {1, "Fake H200", "GPU-8caa22", "0000:65:00.0", 100'000'000'000, 9, 0}};
};

}  // namespace

extern "C" __attribute__((visibility("default"))) cuda::Library* lockstep_cuda_library(int version) {
  const char* machine = std::getenv("FAKE_CUDA");
  if (version != cuda::kLibraryVersion || (machine != nullptr && std::string(machine) == "other version"))
    return nullptr;
  static auto* const kLibrary = new FakeLibrary(machine == nullptr ? "two" : machine);
  return kLibrary;
}
