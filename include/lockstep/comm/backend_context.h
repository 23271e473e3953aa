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

// A backend's arguments when a group is made. `store` and the timeouts outlive the backend.
struct BackendContext {
  Place place;
  std::shared_ptr<Store> store;       // scoped to this group: keys do not clash with another group's
  std::string token;                  // the job's secret; peers prove that they know it; empty: LOCKSTEP_INSECURE=1
  std::string transport;              // "auto", "shm", "tcp" or "hierarchical"
  std::string advertise_address;      // numeric address under which peers reach this rank
  std::chrono::milliseconds timeout;  // a collective's default deadline
  std::chrono::milliseconds store_timeout;                             // for the rendezvous
  std::chrono::milliseconds stall_timeout = std::chrono::seconds(30);  // how long a rank may send no heartbeat
  std::string node = {};     // LOCKSTEP_NODE: ranks with different ones do not share memory
  Device* device = nullptr;  // this rank's; null: local_device()
  Backend* host = nullptr;   // a GPU's: the group's backend for host memory, which outlives it; null: there is none
};

}  // namespace lockstep
#pragma GCC visibility pop
