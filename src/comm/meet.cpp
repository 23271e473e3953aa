#include <array>
#include <memory>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/interface.h"
#include "src/comm/invitation.h"
#include "src/comm/memory_store.h"
#include "src/comm/socket.h"

namespace lockstep {

namespace {

std::string fresh_token() {
  std::array<std::byte, 16> secret;
  crypto::fill_random(secret);
  return crypto::hex(secret);
}

Rendezvous meet_at_address(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  Rendezvous meeting;
  meeting.token = job.token;
  if (job.token.empty() && !job.insecure && !is_loopback(job.master_host))
    throw RendezvousError(
        "MASTER_ADDR={} is not loopback and the job has no token, anyone on the network could join it: set LOCKSTEP_TOKEN or "
        "LOCKSTEP_TOKEN_FILE on every rank, or LOCKSTEP_INSECURE=1 on a network that you trust",
        job.master_host);
  if (job.place.rank == 0 && !job.store_is_hosted) {
    meeting.server = std::make_shared<StoreServer>(
        StoreServerOptions{.host = job.master_host, .port = job.master_port, .token = job.token, .insecure = job.insecure});
    // Debian's /etc/hosts gives a machine's own name 127.0.1.1.
    if (const Endpoint bound = meeting.server->endpoint(); !is_loopback(job.master_host) && is_loopback(bound.host))
      log::warn("MASTER_ADDR={} is {} here: ranks on other machines cannot reach this store; name rank 0's address in numbers",
                job.master_host, bound.host);
  }
  meeting.store = connect_store({job.master_host, job.master_port}, job.token, timeout);
  meeting.advertise_address = own_address(job.master_host, job.master_port);
  return meeting;
}

// Rank 0's store and the invitation to it live together.
struct HostedByRankZero {
  explicit HostedByRankZero(const JobEnvironment& job, const std::string& token)
      : server({.token = token}), invitation(job.job_id, {server.endpoint().port, token}) {}
  StoreServer server;
  InvitationServer invitation;
};

Rendezvous meet_under_mpirun(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  Rendezvous meeting;
  meeting.advertise_address = "127.0.0.1";
  Endpoint endpoint{"127.0.0.1", 0};
  if (job.place.rank == 0) {
    meeting.token = fresh_token();
    const auto hosted = std::make_shared<HostedByRankZero>(job, meeting.token);
    meeting.server = std::shared_ptr<StoreServer>(hosted, &hosted->server);
    endpoint = hosted->server.endpoint();
  } else {
    const Invitation invitation = ask_for_invitation(job.job_id, timeout);
    meeting.token = invitation.token;
    endpoint.port = invitation.port;
  }
  meeting.store = connect_store(endpoint, meeting.token, timeout);
  return meeting;
}

}  // namespace

Rendezvous meet(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  try {
    if (job.kind == JobEnvironment::Kind::kAddress) return meet_at_address(job, timeout);
    if (job.kind == JobEnvironment::Kind::kOpenMpi) return meet_under_mpirun(job, timeout);
  } catch (const RendezvousError& error) {
    throw RendezvousError("rank {} of {}: {}", job.place.rank, job.place.world_size, error.what());
  }
  return {std::make_shared<MemoryStore>(), nullptr, job.token, "127.0.0.1"};
}

}  // namespace lockstep
