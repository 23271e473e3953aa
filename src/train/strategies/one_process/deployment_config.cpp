// Where variables, inputs, optimizer and clones are: Slim's rules.

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/train/deploy.h"
#include "src/core/base/message_text.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

void check(const DeploymentConfig& config) {
  if (config.num_clones < 1)
    throw InvalidArgument("DeploymentConfig: num_clones is {}: at least one clone is needed", config.num_clones);
  if (config.num_ps_tasks < 0)
    throw InvalidArgument("DeploymentConfig: num_ps_tasks is {}: 0 means no parameter server", config.num_ps_tasks);
  if (config.num_replicas < 1)
    throw InvalidArgument("DeploymentConfig: num_replicas is {}: this process is one", config.num_replicas);
  if (config.replica_id < 0 || config.replica_id >= config.num_replicas)
    throw InvalidArgument("DeploymentConfig: replica_id is {}, num_replicas {}: it must be from 0 to {}",
                          config.replica_id, config.num_replicas, config.num_replicas - 1);
  if (config.num_replicas > 1 && config.num_ps_tasks < 1)
    throw InvalidArgument(
        "DeploymentConfig: {} replicas have no parameter server to share variables by: set num_ps_tasks, or train with "
        "make_strategy(\"ddp\")",
        config.num_replicas);
  if (config.num_ps_tasks > 0 && (config.worker_job_name.empty() || config.ps_job_name.empty()))
    throw InvalidArgument(
        "DeploymentConfig: with {} parameter servers both jobs need a name: worker_job_name is '{}', ps_job_name '{}'",
        config.num_ps_tasks, config.worker_job_name, config.ps_job_name);
}

DeploymentDevice on_worker(const DeploymentConfig& config, Device& device) {
  return {config.num_ps_tasks > 0 ? config.worker_job_name : "", {}, &device};
}

void check_clone(const DeploymentConfig& config, int clone) {
  check(config);
  if (clone < 0 || clone >= config.num_clones)
    throw InvalidArgument("DeploymentConfig: there is no clone {}: num_clones is {}, they count from 0", clone,
                          config.num_clones);
}

}  // namespace

std::string DeploymentDevice::name() const {
  std::string text = job.empty() ? "" : "/job:" + job;
  if (task) text += "/task:" + std::to_string(*task);
  return text + "/device:" + (device == nullptr ? "none" : device->name());
}

DeploymentDevice DeploymentConfig::variables_device(int variable) const {
  check(*this);
  if (num_ps_tasks == 0) return {"", {}, &cpu_device()};
  return {ps_job_name, variable % num_ps_tasks, &cpu_device()};
}

DeploymentDevice DeploymentConfig::inputs_device() const {
  check(*this);
  return on_worker(*this, cpu_device());
}

DeploymentDevice DeploymentConfig::optimizer_device() const {
  check(*this);
  return on_worker(*this, cpu_device());
}

DeploymentDevice DeploymentConfig::clone_device(int clone) const {
  check_clone(*this, clone);
  if (clone_on_cpu) return on_worker(*this, cpu_device());
  const std::vector<Device*> there = devices.empty() ? default_devices() : devices;
  if (num_clones > static_cast<int>(there.size())) {
    std::vector<std::string> names;
    for (const Device* device : there) names.push_back(device == nullptr ? "null" : device->name());
    throw InvalidArgument(
        "DeploymentConfig: {} clones need as many devices, there are {} ({}): fewer clones, more logical devices "
        "(Device::configure()), or clone_on_cpu",
        num_clones, there.size(), joined(names, ", "));
  }
  Device* const device = there[static_cast<std::size_t>(clone)];
  if (device == nullptr) throw InvalidArgument("DeploymentConfig: .devices[{}] is null", clone);
  const auto first = std::find(there.begin(), there.end(), device);
  if (first - there.begin() < clone)
    throw InvalidArgument(
        "DeploymentConfig: .devices[{}] is {}, and so is .devices[{}]: each clone has a device of its own; "
        "Device::configure() makes several of one",
        clone, device->name(), first - there.begin());
  return on_worker(*this, *device);
}

std::string DeploymentConfig::clone_scope(int clone) const {
  check_clone(*this, clone);
  return num_clones > 1 ? "clone_" + std::to_string(clone) : "";
}

}  // namespace lockstep::train
