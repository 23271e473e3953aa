// Lets ranks of one machine that know only their job's id find rank 0's store: an abstract unix socket whose name
// contains that id.
//
// Only processes of the same user get an answer (SO_PEERCRED), nothing remains in the file system, and concurrent jobs
// have different ids.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/comm/store.h"

namespace lockstep {

struct StoreContact {
  std::uint16_t port = 0;  // of the store, on loopback
  std::string token;
};

// Answers all processes of this user that connect, on its own thread, until destroyed. Throws RendezvousError if a
// process of the same job answers already (a second rank 0).
class UnixRendezvousServer {
 public:
  UnixRendezvousServer(const std::string& job_id, const StoreContact& contact);
  ~UnixRendezvousServer();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Retries until the timeout; then throws RendezvousError.
StoreContact query_unix_rendezvous(const std::string& job_id, std::chrono::milliseconds timeout);

}  // namespace lockstep
