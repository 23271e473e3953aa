#include "src/core/device/device_configuration.h"

#include <algorithm>
#include <set>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/memory/memory_policy.h"

namespace lockstep {

namespace {

constexpr long kMaxGpu = 1023;
constexpr const char* kConfigure = "Device::configure";

// The text up to the next separator; the rest remains in `text`.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

[[noreturn]] void refuse(const std::string& source, std::string_view entry) {
  throw InvalidArgument(
      "{}: '{}' is invalid: expected cpu:2x (the CPU as two devices), cuda:0:2x (GPU 0 as two) or cuda:0:1G+3G (GPU 0 "
      "as two with "
      "this much memory); "
      "1 to {} of each, several entries separated by commas",
      source, entry, kMaxLogicalDevices);
}

int parts_of(const std::string& source, std::string_view entry, std::string_view text) {
  if (text.size() < 2 || text.back() != 'x') refuse(source, entry);
  text.remove_suffix(1);
  try {
    return static_cast<int>(env::parse_integer(source.c_str(), std::string(text), 1, kMaxLogicalDevices));
  } catch (const InvalidArgument&) {
    refuse(source, entry);
  }
}

std::size_t limit_of(const std::string& source, const std::string& text) {
  const MemoryPolicy policy = parse_memory_policy(source, text);
  if (policy.kind == MemoryPolicy::Kind::kLimit) return policy.bytes;
  throw InvalidArgument("{}: memory '{}' of a logical device is invalid: expected an amount such as 1G or 512M", source,
                        text);
}

GpuSplit split_of_limits(const std::string& source, const std::vector<std::string>& texts) {
  if (texts.size() > static_cast<std::size_t>(kMaxLogicalDevices))
    throw InvalidArgument("{}: {} logical devices of one GPU are too many: at most {}", source, texts.size(),
                          kMaxLogicalDevices);
  GpuSplit split{static_cast<int>(texts.size())};
  for (const std::string& text : texts) split.limits.push_back(limit_of(source, text));
  return split;
}

void add_entry(const std::string& source, std::string_view entry, DeviceConfiguration& configuration) {
  std::string_view rest = entry;
  const std::string_view kind = take_until(rest, ':');
  if (kind == "cpu") {
    configuration.cpus = parts_of(source, entry, rest);
    return;
  }
  if (kind != "cuda") refuse(source, entry);
  const std::string ordinal(take_until(rest, ':'));
  int gpu = 0;
  try {
    gpu = static_cast<int>(env::parse_integer(source.c_str(), ordinal, 0, kMaxGpu));
  } catch (const InvalidArgument&) {
    refuse(source, entry);
  }
  if (rest.empty()) refuse(source, entry);
  if (rest.back() == 'x') {
    configuration.splits[gpu] = {parts_of(source, entry, rest)};
    return;
  }
  std::vector<std::string> limits;
  while (!rest.empty()) limits.emplace_back(take_until(rest, '+'));
  configuration.splits[gpu] = split_of_limits(source, limits);
}

std::string gpus_text(std::size_t count) {
  return count == 0 ? "none" : count == 1 ? "GPU 0" : fmt::format("GPUs 0 to {}", count - 1);
}

}  // namespace

bool DeviceConfiguration::sees(int gpu) const {
  return !visible || std::find(visible->begin(), visible->end(), gpu) != visible->end();
}

GpuSplit DeviceConfiguration::split_of(int gpu) const {
  const auto found = splits.find(gpu);
  return found == splits.end() ? GpuSplit{} : found->second;
}

DeviceConfiguration parse_logical_devices(const std::string& source, const std::string& text) {
  DeviceConfiguration configuration;
  std::string_view rest = text;
  if (rest.empty()) refuse(source, rest);
  while (!rest.empty()) add_entry(source, take_until(rest, ','), configuration);
  return configuration;
}

DeviceConfiguration changed_by(const DeviceConfiguration& before, const DeviceOptions& options) {
  DeviceConfiguration after = before;
  if (options.soft_placement)
    throw InvalidArgument(
        "{}: .soft_placement is not supported: TensorFlow (set_soft_device_placement, allow_soft_placement) would run "
        "an operator on another device than the named one and copy its inputs there; Lockstep refuses such a call, "
        "because the hidden copies make a training slow without a trace. Move the tensors with .to(device), or take "
        "local_device(), which is the GPU where there is one and else the CPU",
        kConfigure);
  if (options.cpu) {
    if (*options.cpu < 1 || *options.cpu > kMaxLogicalDevices)
      throw InvalidArgument("{}: {} logical devices of the CPU are invalid: expected 1 to {}", kConfigure, *options.cpu,
                            kMaxLogicalDevices);
    after.cpus = *options.cpu;
  }
  if (options.gpu.has_value() != !options.memory.empty())
    throw InvalidArgument(
        "{}: .gpu and .memory must be set together: {{.gpu = 0, .memory = {{\"1G\", \"1G\"}}}} makes two devices of "
        "GPU 0",
        kConfigure);
  if (options.gpu) {
    if (*options.gpu < 0)
      throw InvalidArgument("{}: GPU {} does not exist: numbers begin with 0", kConfigure, *options.gpu);
    after.splits[*options.gpu] = split_of_limits(kConfigure, options.memory);
  }
  if (options.visible) {
    std::set<int> seen;
    for (const int gpu : *options.visible)
      if (gpu < 0 || !seen.insert(gpu).second)
        throw InvalidArgument("{}: .visible contains GPU {}, which {}", kConfigure, gpu,
                              gpu < 0 ? "does not exist: numbers begin with 0" : "it contains already");
    after.visible = options.visible;
  }
  if (options.grow) after.grow = options.grow;
  return after;
}

void check_gpus_exist(const DeviceConfiguration& configuration, const GpuSearch& found) {
  const auto check = [&](int gpu) {
    if (gpu < static_cast<int>(found.gpus.size())) return;
    throw InvalidArgument("logical devices: there is no GPU {}: this process has {}{}{}", gpu,
                          gpus_text(found.gpus.size()), found.why_none.empty() ? "" : ": ", found.why_none);
  };
  for (const int gpu : configuration.visible.value_or(std::vector<int>{})) check(gpu);
  for (const auto& [gpu, split] : configuration.splits) {
    check(gpu);
    if (!configuration.sees(gpu))
      throw InvalidArgument("logical devices: GPU {} is to be split, but is not among the visible ones", gpu);
    const std::size_t memory = found.gpus[static_cast<std::size_t>(gpu)].memory_bytes;
    std::size_t left = memory;
    const bool fits = std::all_of(split.limits.begin(), split.limits.end(), [&](std::size_t limit) {
      const bool enough = limit <= left;
      left -= enough ? limit : 0;
      return enough;
    });
    if (!fits)
      throw InvalidArgument("logical devices: the limits of GPU {}'s {} parts do not fit into its {} bytes of memory",
                            gpu, split.limits.size(), memory);
  }
}

std::string gpu_device_name(int gpu, const GpuSplit& split, int part) {
  return split.parts == 1 && split.limits.empty() ? fmt::format("cuda:{}", gpu) : fmt::format("cuda:{}/{}", gpu, part);
}

}  // namespace lockstep
