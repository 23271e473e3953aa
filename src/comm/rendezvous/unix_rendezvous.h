// How ranks of one machine that know only their job's id find rank 0's store: an abstract unix socket named by that id.
//
// Only processes of the same user get an answer (SO_PEERCRED), nothing is left in the file system, and two jobs side by
// side have different ids.
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

// Answers all processes of this user that ask, on a thread of its own, until destroyed. Throws RendezvousError when a
// process of the same job answers already (a second rank 0).
class UnixRendezvousServer {
 public:
  UnixRendezvousServer(const std::string& job_id, const StoreContact& contact);
  ~UnixRendezvousServer();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Asks until the timeout; throws RendezvousError.
StoreContact ask_unix_rendezvous(const std::string& job_id, std::chrono::milliseconds timeout);

}  // namespace lockstep
