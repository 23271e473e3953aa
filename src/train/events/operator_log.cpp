#include "lockstep/train/operator_log.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::train {

namespace {

enum OperatorNumber : std::size_t {
#define LOCKSTEP_OPERATOR(name, ...) kNumberOf_##name,
#include "lockstep/core/operators.def"
  kOperators
};

struct LoggedDevice {
  Device* device = nullptr;
  const Stream* stream = nullptr;  // the default one
  std::string name;
  KernelTable observer;  // logs, and calls the device's own kernels
  std::atomic<bool> on = false;
  std::array<std::atomic<bool>, kOperators> seen = {};
};

constexpr std::size_t kMostDevices = 64;

// Never destroyed, as the devices. Entries are added under the mutex and stay; who calls an operator reads them
// without.
struct LoggedDevices {
  std::mutex mutex;
  std::array<std::atomic<LoggedDevice*>, kMostDevices> all = {};
};
LoggedDevices& logged_devices() {
  static auto* const kOne = new LoggedDevices;
  return *kOne;
}

// Kernels of a kind of device are the same on each, so that for another stream any of that kind will do.
LoggedDevice& device_of(const Stream& stream) {
  LoggedDevice* of_kind = nullptr;
  for (const auto& each : logged_devices().all) {
    LoggedDevice* const logged = each.load(std::memory_order_acquire);
    if (logged == nullptr) break;
    if (logged->stream == &stream) return *logged;
    const bool is_gpu = stream.native() != nullptr;
    if (of_kind == nullptr && is_gpu == (logged->device->kind() == DeviceKind::kCuda)) of_kind = logged;
  }
  LOCKSTEP_CHECK(of_kind != nullptr, "an operator is logged on a device that is not");
  return *of_kind;
}

template <auto entry, std::size_t number> struct Logged;
template <typename... Arguments, void (*KernelTable::*entry)(Arguments...), std::size_t number>
struct Logged<entry, number> {
  static void call(Arguments... arguments) {
    LoggedDevice& logged = device_of(std::get<sizeof...(Arguments) - 1>(std::tie(arguments...)));
    if (!logged.seen[number].load(std::memory_order_relaxed) && logged.on && !logged.seen[number].exchange(true))
      log::info("operator {}: {}", name, logged.name);
    (logged.device->own_kernels().*entry)(arguments...);
  }
  static inline const char* name = "";
};

template <auto entry, std::size_t number> void log_entry(KernelTable& table, const char* name) {
  if (table.*entry == nullptr) return;
  Logged<entry, number>::name = name;
  table.*entry = Logged<entry, number>::call;
}

KernelTable observer_of(const KernelTable& kernels) {
  KernelTable table = kernels;
#define LOCKSTEP_OPERATOR(name, ...) log_entry<&KernelTable::name, kNumberOf_##name>(table, #name);
#include "lockstep/core/operators.def"
  return table;
}

LoggedDevice& add_device(Device& device) {
  for (auto& each : logged_devices().all) {
    LoggedDevice* logged = each.load();
    if (logged != nullptr && logged->device != &device) continue;
    if (logged == nullptr) {
      logged = new LoggedDevice;
      logged->device = &device;
      logged->stream = &device.default_stream();
      logged->name = device.name();
      logged->observer = observer_of(device.own_kernels());
      each.store(logged, std::memory_order_release);
    }
    return *logged;
  }
  throw InvalidArgument("log_operators: {} devices are logged already: {} is one too many", kMostDevices,
                        device.name());
}

}  // namespace

void log_operators(Device& device, bool on) {
  const std::lock_guard lock(logged_devices().mutex);
  LoggedDevice& logged = add_device(device);
  if (logged.on == on) return;
  if (on)
    for (auto& seen : logged.seen) seen = false;
  device.observe_kernels(on ? &logged.observer : nullptr);
  logged.on = on;
}

}  // namespace lockstep::train
