// The list of devices: the one place in core/ that knows which device kinds and CPU kernel families are built in.
#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/cpu_device.h"
#include "src/core/cuda_loader.h"

namespace lockstep {

namespace {

KernelTable cpu_kernels() {
  KernelTable table = reference_kernels();
  use_fast_cpu_kernels(table);
#if LOCKSTEP_WITH_ONEDNN
  use_onednn_kernels(table);
#endif
  return table;
}

}  // namespace

Device& cpu_device() {
  // Never destroyed: buffers may outlive static destruction.
  static CpuDevice* const kDevice = new CpuDevice(cpu_kernels());
  return *kDevice;
}

namespace {

Device& cuda_device(int ordinal) {
  const std::string memory = env::text(env::kGpuMemory).value_or("grow");
  return cuda_library().device(ordinal, parse_memory_policy(env::kGpuMemory, memory));
}

// No GPU is no fault when nobody asked for one.
bool has_gpus() {
  static const bool kHas = [] {
    try {
      return !cuda_library().gpus().empty();
    } catch (const Error& error) {
      log::debug("no GPU is used: {}", error.what());
      return false;
    }
  }();
  return kHas;
}

}  // namespace

Device& local_device(int local_rank) {
  const std::string choice = env::text(env::kDevice).value_or("auto");
  if (choice == "cpu" || (choice == "auto" && !has_gpus())) return cpu_device();
  constexpr std::string_view kNumbered = "cuda:";
  if (choice.starts_with(kNumbered))
    return cuda_device(static_cast<int>(env::parse_integer(env::kDevice, choice.substr(kNumbered.size()), 0, 1023)));
  if (choice != "auto" && choice != "cuda") throw InvalidArgument("{}='{}' is none of auto, cpu, cuda, cuda:N", env::kDevice, choice);
  const auto& gpus = cuda_library().gpus();
  if (local_rank >= static_cast<int>(gpus.size()))
    throw InvalidArgument("local rank {} has no GPU of its own: this process sees {}. Start as many ranks a machine as it has GPUs, or run on the CPU "
                          "with {}=cpu",
                          local_rank, gpus.size(), env::kDevice);
  return cuda_device(local_rank);
}

}  // namespace lockstep
