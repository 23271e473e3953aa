#include "lockstep/core/device_scope.h"

#include <atomic>
#include <utility>

#include "lockstep/core/logical_devices.h"

namespace lockstep {

namespace {

std::atomic<Device*> devices_default = nullptr;
thread_local Device* this_threads_device = nullptr;

}  // namespace

Device& default_device() {
  if (this_threads_device != nullptr) return *this_threads_device;
  Device* const chosen = devices_default.load(std::memory_order_acquire);
  return chosen == nullptr ? cpu_device() : *chosen;
}

void set_default_device(Device& device) { devices_default.store(&device, std::memory_order_release); }
void set_default_device(const std::string& name) { set_default_device(device_named(name)); }

DeviceScope::DeviceScope(Device& device) : before_(std::exchange(this_threads_device, &device)) {}
DeviceScope::DeviceScope(const std::string& name) : DeviceScope(device_named(name)) {}
DeviceScope::~DeviceScope() { this_threads_device = before_; }

}  // namespace lockstep
