// The list of devices: the only file in core/ that knows the built-in kinds of devices.
#include <mutex>
#include <optional>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/logical_devices.h"
#include "src/core/device/cpu_device.h"
#include "src/core/device/cuda_loader.h"
#include "src/core/device/device_choice.h"
#include "src/core/device/device_configuration.h"
#include "src/core/device/device_name.h"
#include "src/core/device/gpu.h"
#include "src/core/process/compute_threads.h"

namespace lockstep {

namespace {

// Searched once: GPUs do not change while the process runs.
const GpuSearch& gpus_here() {
  static const GpuSearch kFound = find_gpus();  // after a failure the next call tries again
  return kFound;
}

// The requested configuration, until it is used.
class Configured {
 public:
  DeviceConfiguration now() {
    const std::lock_guard lock(mutex_);
    return current();
  }
  // From now on the configuration of that kind cannot be changed.
  DeviceConfiguration use(DeviceKind kind) {
    const std::lock_guard lock(mutex_);
    const DeviceConfiguration configuration = current();
    (kind == DeviceKind::kCpu ? uses_cpu_ : uses_gpus_) = true;
    return configuration;
  }
  void change(const DeviceOptions& options) {
    const std::lock_guard lock(mutex_);
    const DeviceConfiguration before = current(), after = changed_by(before, options);
    DeviceConfiguration other_cpus = before;
    other_cpus.cpus = after.cpus;
    if (uses_cpu_ && after.cpus != before.cpus)
      throw InvalidArgument(
          "Device::configure: the CPU is in use already, as {} logical device{}: call it before the first tensor is "
          "made",
          before.cpus, before.cpus == 1 ? "" : "s");
    if (after != other_cpus) {
      if (uses_gpus_)
        throw InvalidArgument("Device::configure: GPUs are in use already: call it before the first use of one");
      check_gpus_exist(after, gpus_here());
    }
    configured_ = after;
  }

 private:
  DeviceConfiguration& current() {
    if (!configured_) {
      const auto asked = env::text(env::kLogicalDevices);
      configured_ = asked ? parse_logical_devices(env::kLogicalDevices, *asked) : DeviceConfiguration{};
    }
    return *configured_;
  }

  std::mutex mutex_;
  std::optional<DeviceConfiguration> configured_;
  bool uses_cpu_ = false, uses_gpus_ = false;
};

Configured& configured() {
  static auto* const kOne = new Configured;  // never destroyed, like the devices
  return *kOne;
}

// Never destroyed: buffers may outlive static destruction.
const std::vector<Device*>& cpu_devices() {
  static const std::vector<Device*>* const kDevices = [] {
    const int count = configured().use(DeviceKind::kCpu).cpus;  // throws if LOCKSTEP_LOGICAL_DEVICES is invalid
    const KernelTable kernels = cpu_kernels();
    auto* devices = new std::vector<Device*>;
    for (int i = 0; i < count; ++i) devices->push_back(new CpuDevice(kernels, i, count == 1));
    return devices;
  }();
  return *kDevices;
}

MemoryPolicy policy_of(const DeviceConfiguration& configuration, int ordinal, int part, int share) {
  const GpuSplit split = configuration.split_of(ordinal);
  if (!split.limits.empty()) return {MemoryPolicy::Kind::kLimit, split.limits[static_cast<std::size_t>(part)]};
  const std::size_t bytes = gpus_here().gpus[static_cast<std::size_t>(ordinal)].memory_bytes;
  if (configuration.grow == false && split.parts == 1 && share == 1) return {MemoryPolicy::Kind::kAll};
  return memory_policy_of(env::text(env::kGpuMemory), bytes, share * split.parts);
}

Device& gpu(int ordinal, int share, int part = 0) {
  const auto& gpus = gpus_here().gpus;
  if (ordinal >= static_cast<int>(gpus.size()))
    throw InvalidArgument("{}=cuda:{}: this process sees {} GPU{}, counted from 0 (CUDA_VISIBLE_DEVICES is '{}')",
                          env::kDevice, ordinal, gpus.size(), gpus.size() == 1 ? "" : "s",
                          env::text("CUDA_VISIBLE_DEVICES").value_or(""));
  const DeviceConfiguration configuration = configured().use(DeviceKind::kCuda);
  check_gpus_exist(configuration, gpus_here());
  if (!configuration.sees(ordinal))
    throw InvalidArgument("cuda:{} is not among the GPUs that Device::configure() left visible", ordinal);
  return cuda_library().device(ordinal, gpu_device_name(ordinal, configuration.split_of(ordinal), part),
                               policy_of(configuration, ordinal, part, share));
}

}  // namespace

void Device::configure(const DeviceOptions& options) { configured().change(options); }

Device& cpu_device() {
  static Device& kFirst = *cpu_devices().front();
  return kFirst;
}

std::vector<PhysicalDevice> physical_devices() {
  const DeviceConfiguration configuration = configured().now();
  std::vector<PhysicalDevice> devices{{DeviceKind::kCpu, 0, "cpu", fmt::format("{} cores", affinity().size())}};
  for (const cuda::Gpu& gpu : gpus_here().gpus)
    if (configuration.sees(gpu.ordinal))
      devices.push_back(
          {DeviceKind::kCuda, gpu.ordinal, fmt::format("cuda:{}", gpu.ordinal), gpu.name, gpu.memory_bytes});
  return devices;
}

namespace {

// A logical GPU, which need not have been created yet.
struct GpuPart {
  int ordinal = 0, part = 0;
  std::string name;
};

std::vector<GpuPart> gpu_parts() {
  std::vector<GpuPart> parts;
  const DeviceConfiguration configuration = configured().now();
  check_gpus_exist(configuration, gpus_here());
  for (const cuda::Gpu& found : gpus_here().gpus) {
    if (!configuration.sees(found.ordinal)) continue;
    const GpuSplit split = configuration.split_of(found.ordinal);
    for (int part = 0; part < split.parts; ++part)
      parts.push_back({found.ordinal, part, gpu_device_name(found.ordinal, split, part)});
  }
  return parts;
}

}  // namespace

std::vector<Device*> logical_devices(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return cpu_devices();
  std::vector<Device*> devices;
  for (const GpuPart& each : gpu_parts()) devices.push_back(&gpu(each.ordinal, 1, each.part));
  return devices;
}

std::vector<Device*> logical_devices() {
  std::vector<Device*> devices = logical_devices(DeviceKind::kCpu);
  for (Device* gpu : logical_devices(DeviceKind::kCuda)) devices.push_back(gpu);
  return devices;
}

namespace {

// Returns null if there is no such device. Creates no other.
Device* find_device(const DeviceName& wanted) {
  const auto number = static_cast<std::size_t>(wanted.number.value_or(0));
  if (wanted.kind == DeviceKind::kCpu) return number < cpu_devices().size() ? cpu_devices()[number] : nullptr;
  const std::vector<GpuPart> parts = gpu_parts();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool is_number = wanted.is_physical ? !wanted.number || parts[i].ordinal == *wanted.number : i == number;
    if (!is_number) continue;
    if (!wanted.part || parts[i].name.ends_with(fmt::format("/{}", *wanted.part)))
      return &gpu(parts[i].ordinal, 1, parts[i].part);
  }
  return nullptr;
}

[[noreturn]] void refuse_name(const std::string& name, const std::optional<DeviceName>& wanted) {
  const bool is_gpu = wanted && wanted->kind == DeviceKind::kCuda;
  std::string known;
  for (const Device* device : cpu_devices()) known += (known.empty() ? "" : ", ") + device->name();
  if (is_gpu)
    for (const GpuPart& each : gpu_parts()) known += ", " + each.name;
  const std::string why = is_gpu ? gpus_here().why_none : "";
  throw InvalidArgument(
      "there is no device '{}': {}{}{}", name, known, why.empty() ? "" : "; no GPU: " + why,
      !wanted  ? "; names are cpu, cpu:1, cuda:0, cuda:0/1, gpu:0, or TensorFlow's /gpu:0 and /device:GPU:0 of this "
                 "process"
      : is_gpu ? "; another device never takes its place (TensorFlow's soft placement would): choose one of those, or "
                 "local_device(), which takes the GPU where there is one"
               : "");
}

}  // namespace

Device& device_named(const std::string& name) {
  const std::optional<DeviceName> wanted = parse_device_name(name);
  Device* const found = wanted ? find_device(*wanted) : nullptr;
  if (found == nullptr) refuse_name(name, wanted);
  return *found;
}

std::string describe_devices() {
  const DeviceConfiguration configuration = configured().now();
  std::string text = fmt::format("1 physical CPU, {} logical", configuration.cpus);
  std::size_t gpus = 0, parts = 0;
  for (const cuda::Gpu& gpu : gpus_here().gpus) {
    if (!configuration.sees(gpu.ordinal)) continue;
    ++gpus;
    parts += static_cast<std::size_t>(configuration.split_of(gpu.ordinal).parts);
  }
  return gpus == 0 ? text + "; no GPU"
                   : fmt::format("{}; {} physical GPU{}, {} logical", text, gpus, gpus == 1 ? "" : "s", parts);
}

namespace {

// Logged by one rank per machine, once; lockrun logs it itself and then requests the CPU.
void log_use_of_the_cpu(int local_rank, const std::string& why) {
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
    log_use_of_the_cpu(local_rank, found.why_none);
    return cpu_device();
  }
  if (found.gpus.empty())
    throw cuda::NoGpu("{} requests a GPU: {}; {}=cpu computes without one", env::kDevice, found.why_none, env::kDevice);
  const int share = static_cast<int>(env::integer(env::kShareGpu, 1, kMaxShare).value_or(1));
  if (choice.ordinal) return gpu(*choice.ordinal, share);
  const bool own = env::text("CUDA_VISIBLE_DEVICES").has_value();
  return gpu(gpu_of_local_rank(local_rank, static_cast<int>(found.gpus.size()), share, own), share);
}

}  // namespace lockstep
