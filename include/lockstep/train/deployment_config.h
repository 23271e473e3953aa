// The placement of variables, inputs, optimizer and clones, as Slim's DeploymentConfig; for train/deploy.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// A device with the job and task of its process: "/job:ps/task:1/device:cpu:0", or "/device:cuda:0" in this process.
struct DeploymentDevice {
  std::string job = {};          // empty: this process
  std::optional<int> task = {};  // nullopt: any, or the only one
  Device* device = nullptr;
  std::string name() const;
};

// The placement of a training's parts, with Slim's names and rules. Each function throws InvalidArgument for an invalid
// configuration.
struct DeploymentConfig {
  int num_clones = 1;
  bool clone_on_cpu = false;  // all clones on the first CPU device
  int replica_id = 0;         // of this worker process, and their number
  int num_replicas = 1;
  int num_ps_tasks = 0;  // parameter servers; 0: this process has the variables
  std::string worker_job_name = "worker", ps_job_name = "ps";
  // The clones' devices, in order, each once; empty: the logical GPUs, or the logical CPUs if there are no GPUs.
  std::vector<Device*> devices = {};

  // The CPU; with parameter servers variable v is on task v modulo their number.
  DeploymentDevice variables_device(int variable = 0) const;
  DeploymentDevice inputs_device() const;     // the worker's CPU
  DeploymentDevice optimizer_device() const;  // the worker's CPU
  DeploymentDevice clone_device(int clone) const;
  std::string clone_scope(int clone) const;  // "clone_1"; "" for a single clone
};

}  // namespace lockstep::train
#pragma GCC visibility pop
