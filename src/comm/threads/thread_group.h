// A process group whose ranks are threads of this process, each with a device of its own.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The rendezvous of the threads: make one and pass it to all of them.
class ThreadGroup {
 public:
  // "" if these devices can form such a group, or why not. Logical CPUs can: they share this process's memory. GPUs
  // need NCCL, and a physical GPU each.
  static std::string refusal(const std::vector<Device*>& devices);

  // `devices`, by rank. A call's deadline is LOCKSTEP_TIMEOUT_S, else 5 minutes. Throws InvalidArgument with refusal().
  explicit ThreadGroup(std::vector<Device*> devices);
  ~ThreadGroup();

  // Each rank's thread calls this once; on GPUs it blocks until all have. The result may outlive this object. No thread
  // of it opens a socket, and no rank sends heartbeats: a rank that cannot go on calls abort().
  std::shared_ptr<ProcessGroup> join(int rank);

 private:
  struct Rendezvous;
  const std::vector<Device*> devices_;
  const std::chrono::milliseconds timeout_;
  const std::unique_ptr<Rendezvous> rendezvous_;
};

}  // namespace lockstep
