// The list of devices: the one place in core/ that knows which device kinds and CPU kernel families are built in.
#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/cpu_device.h"
#include "src/core/cuda_loader.h"
#include "src/core/device_choice.h"
#include "src/core/gpu.h"

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

// Asked once: devices come and go with the process.
const GpuSearch& gpus_here() {
  static const GpuSearch kFound = find_gpus();  // a failure is tried again by the next call
  return kFound;
}

Device& gpu(int ordinal, int share) {
  const auto& gpus = gpus_here().gpus;
  if (ordinal >= static_cast<int>(gpus.size()))
    throw InvalidArgument("{}=cuda:{}: this process sees {} GPU{}, counted from 0 (CUDA_VISIBLE_DEVICES is '{}')", env::kDevice, ordinal,
                          gpus.size(), gpus.size() == 1 ? "" : "s", env::text("CUDA_VISIBLE_DEVICES").value_or(""));
  const std::size_t bytes = gpus[static_cast<std::size_t>(ordinal)].memory_bytes;
  return cuda_library().device(ordinal, memory_policy_of(env::text(env::kGpuMemory), bytes, share));
}

// Said by one rank a machine, once; lockrun says it itself and then asks for the CPU.
void tell_that_the_cpu_computes(int local_rank, const std::string& why) {
  static const bool kTold = [&] {
    if (local_rank == 0) log::info("computing on the CPU: {}", why);
    return true;
  }();
  static_cast<void>(kTold);
}

}  // namespace

Device& local_device(int local_rank) {
  const DeviceChoice choice = parse_device_choice(env::text(env::kDevice).value_or("auto"));
  if (choice.kind == DeviceChoice::Kind::kCpu) return cpu_device();
  const GpuSearch& found = gpus_here();
  if (found.gpus.empty() && choice.kind == DeviceChoice::Kind::kAuto) {
    tell_that_the_cpu_computes(local_rank, found.why_none);
    return cpu_device();
  }
  if (found.gpus.empty())
    throw cuda::NoGpu("{} asks for a GPU: {}; {}=cpu computes without one", env::kDevice, found.why_none, env::kDevice);
  const int share = static_cast<int>(env::integer(env::kShareGpu, 1, kMaxShare).value_or(1));
  if (choice.ordinal) return gpu(*choice.ordinal, share);
  const bool own = env::text("CUDA_VISIBLE_DEVICES").has_value();
  return gpu(gpu_of_local_rank(local_rank, static_cast<int>(found.gpus.size()), share, own), share);
}

}  // namespace lockstep
