// The data with which the ranks of a group find each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/core/place.h"

#pragma GCC visibility push(default)
namespace lockstep {

class Backend;
class Device;
class Store;

// The arguments from which a backend is made. `store` and the timeouts outlive the backend.
struct BackendContext {
  Place place;
  std::shared_ptr<Store> store;   // this group's view: its keys do not clash with those of other groups
  std::string token;              // the job's secret, which peers prove that they know; empty with LOCKSTEP_INSECURE=1
  std::string transport;          // "auto", "shm", "tcp" or "hierarchical"
  std::string advertise_address;  // numeric address at which peers reach this rank
  std::chrono::milliseconds timeout;                                   // a collective's default deadline
  std::chrono::milliseconds store_timeout;                             // of the rendezvous
  std::chrono::milliseconds stall_timeout = std::chrono::seconds(30);  // longest time without a heartbeat from a rank
  std::string node = {};     // LOCKSTEP_NODE: ranks with different values do not share memory
  Device* device = nullptr;  // this rank's; null: local_device()
  Backend* host = nullptr;   // for a GPU backend: the group's backend for host memory, which outlives it; or null
};

}  // namespace lockstep
#pragma GCC visibility pop
