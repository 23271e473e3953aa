#include <algorithm>
#include <memory>
#include <thread>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/host_names.h"
#include "src/comm/net/interface.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/comm/net/wait_notice.h"
#include "src/comm/rendezvous/attempt_key.h"
#include "src/comm/rendezvous/mpi_rendezvous.h"
#include "src/comm/rendezvous/store_address.h"
#include "src/comm/rendezvous/unix_rendezvous.h"
#include "src/comm/store/memory_store.h"

namespace lockstep {

namespace {

constexpr std::chrono::milliseconds kPause(200);

std::string named_host(const JobEnvironment& job) {
  return job.host_source == env::kMasterAddr ? fmt::format("{}={}", env::kMasterAddr, job.master_host)
                                             : fmt::format("{} ({})", job.master_host, job.host_source);
}

std::string named_port(const JobEnvironment& job) {
  return job.port_source == env::kMasterPort ? fmt::format("{}={}", env::kMasterPort, job.master_port)
                                             : fmt::format("port {} ({})", job.master_port, job.port_source);
}

// Adds the source of the store's address to the error of `reach`, since users know their settings and not the address
// that results.
template <typename Reach> auto at_the_jobs_address(const JobEnvironment& job, const Reach& reach) {
  try {
    return reach();
  } catch (const RendezvousError& error) {
    throw RendezvousError("{}; the address is {}, {}", error.what(), named_host(job), named_port(job));
  }
}

// The listening socket of rank 0's store. If MASTER_ADDR is a name that does not resolve yet, waits until it does.
Fd listen_as_rank_zero(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  const auto chosen = env::text(env::kInterface);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  WaitNotice notice;
  for (std::string why;;) {
    const auto resolved = resolve_host(job.master_host, deadline, why);
    const auto addresses = store_addresses(
        job.master_host, resolved, addresses_of_this_machine(), job.master_is_named_for_others,
        chosen && job.master_is_named_for_others ? choose_address(*chosen, interface_addresses(), "") : "");
    if (!addresses.empty())
      return at_the_jobs_address(job, [&] { return listen_on_one_of(addresses, job.master_port); });
    if (std::chrono::steady_clock::now() + kPause >= deadline)
      throw RendezvousError("{} did not resolve within {} s ({})", named_host(job),
                            static_cast<double>(timeout.count()) / 1000, why);
    notice.look([&] { return fmt::format("{} to resolve ({})", named_host(job), why); });
    std::this_thread::sleep_for(kPause);
  }
}

// The address at which rank 0 reaches its own store. An IPv6 socket on all interfaces also accepts IPv4, and a machine
// may have loopback addresses of only one family.
Endpoint reachable_here(Endpoint endpoint) {
  const auto own = addresses_of_this_machine();
  const bool has_loopback6 = std::find(own.begin(), own.end(), "::1") != own.end();
  if (endpoint.host == "0.0.0.0" || (endpoint.host == "::" && !has_loopback6)) endpoint.host = "127.0.0.1";
  if (endpoint.host == "::") endpoint.host = "::1";
  return endpoint;
}

// Used when MASTER_ADDR does not determine rank 0's own address: the first that others can have a route to, IPv4 before
// IPv6.
std::string first_routed_address() {
  std::string found;
  for (const std::string& address : addresses_of_this_machine()) {
    if (is_loopback(address) || is_link_local(address)) continue;
    if (!is_ipv6(address)) return address;
    if (found.empty()) found = address;
  }
  return found.empty() ? "127.0.0.1" : found;
}

// A machine's own name may resolve to loopback on it (Debian's /etc/hosts maps it to 127.0.1.1), which the others
// cannot reach.
bool is_own_name(const JobEnvironment& job, Deadline deadline) {
  if (!job.master_is_named_for_others) return false;
  std::string why;
  const auto resolved = resolve_host(job.master_host, deadline, why);
  return !resolved.empty() && resolved.front() != job.master_host &&
         std::all_of(resolved.begin(), resolved.end(), is_loopback);
}

std::string advertised_address(const JobEnvironment& job, const Endpoint& store, Deadline deadline) {
  const bool is_everywhere = job.master_host == "0.0.0.0" || job.master_host == "::";
  const bool is_elsewhere = job.master_is_named_for_others && is_loopback(store.host) && store.host != job.master_host;
  const bool says_nothing = is_everywhere || is_elsewhere || is_own_name(job, deadline);
  if (says_nothing && !env::text(env::kInterface)) return first_routed_address();
  return own_address(store.host, store.port, deadline);
}

// The address at which this rank connects to rank 0's store, which listens only on LOCKSTEP_INTERFACE if that is set.
Endpoint store_from_here(const JobEnvironment& job, Deadline deadline) {
  const auto chosen = env::text(env::kInterface);
  if (chosen && is_own_name(job, deadline))
    return {choose_address(*chosen, interface_addresses(), ""), job.master_port};
  return reachable_here({job.master_host, job.master_port});
}

// A rank that an earlier attempt has left must not join this one.
void check_attempt(const JobEnvironment& job, Store& store, const Endpoint& endpoint,
                   std::chrono::milliseconds timeout) {
  if (job.attempt_id.empty() || store.get(kAttemptKey, timeout) == job.attempt_id) return;
  throw RendezvousError(
      "the store at {} serves another attempt of this job, and this process belongs to attempt {}, which has ended: "
      "end this process",
      endpoint.text(), job.attempt);
}

// Connects to this job's store and no other: all steps of a user's jobs may have the same token, and if two of them
// have the same port, a rank must not join the other job.
std::shared_ptr<Store> connect_to_own(const JobEnvironment& job, const Endpoint& endpoint,
                                      std::chrono::milliseconds timeout) {
  constexpr const char* kWhose = "job";
  auto store = connect_store(endpoint, job.token, timeout);
  check_attempt(job, *store, endpoint, timeout);
  if (job.job_id.empty() || job.store_is_hosted) return store;
  if (job.place.rank == 0) store->set(kWhose, job.job_id);
  std::string whose = "no job that it names";
  try {
    whose = store->get(kWhose, timeout);
  } catch (const TimeoutError&) {
  }
  if (whose == job.job_id) return store;
  throw RendezvousError(
      "the store at {} belongs to {}, and this rank to {}: they have one port; set MASTER_PORT for one of them",
      endpoint.text(), whose, job.job_id);
}

Rendezvous rendezvous_at_address(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  Rendezvous rendezvous;
  rendezvous.token = job.token;
  if (job.token.empty() && !job.insecure && !is_loopback(job.master_host))
    throw RendezvousError("{} is not loopback and the job has no token, anyone on the network could join it: {}",
                          named_host(job), kHowToMakeAToken);
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  Endpoint store = store_from_here(job, deadline);
  if (job.place.rank == 0 && !job.store_is_hosted) {
    warn_of_open_token_file();
    StoreServerOptions options;
    options.listen_fd = listen_as_rank_zero(job, timeout).release();
    options.token = job.token;
    options.insecure = job.insecure;
    rendezvous.server = std::make_shared<StoreServer>(options);
    store = reachable_here(rendezvous.server->endpoint());
    // Debian's /etc/hosts maps a machine's own name to 127.0.1.1.
    if (!is_loopback(job.master_host) && is_loopback(rendezvous.server->endpoint().host))
      log::warn("{} is {} here: ranks on other machines cannot reach this store; name rank 0's address in numbers",
                named_host(job), rendezvous.server->endpoint().host);
  }
  rendezvous.store = at_the_jobs_address(job, [&] { return connect_to_own(job, store, timeout); });
  rendezvous.advertise_address = advertised_address(job, store, deadline);
  return rendezvous;
}

// Rank 0's store, and the server that sends its address to the other ranks, have the same lifetime.
struct HostedByRankZero {
  explicit HostedByRankZero(const JobEnvironment& job, const std::string& token)
      : server({.token = token}), contact(job.job_id, {server.endpoint().port, token}) {}
  StoreServer server;
  UnixRendezvousServer contact;
};

Rendezvous rendezvous_on_one_machine(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  Rendezvous rendezvous;
  rendezvous.advertise_address = "127.0.0.1";
  Endpoint endpoint{"127.0.0.1", 0};
  if (job.place.rank == 0) {
    rendezvous.token = fresh_token();
    const auto hosted = std::make_shared<HostedByRankZero>(job, rendezvous.token);
    rendezvous.server = std::shared_ptr<StoreServer>(hosted, &hosted->server);
    endpoint = hosted->server.endpoint();
  } else {
    const StoreContact contact = query_unix_rendezvous(job.job_id, timeout);
    rendezvous.token = contact.token;
    endpoint.port = contact.port;
  }
  rendezvous.store = connect_store(endpoint, rendezvous.token, timeout);
  return rendezvous;
}

}  // namespace

Rendezvous rendezvous(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  try {
    if (job.kind == JobEnvironment::Kind::kAddress) return rendezvous_at_address(job, timeout);
    if (job.kind == JobEnvironment::Kind::kOneMachine) return rendezvous_on_one_machine(job, timeout);
    if (job.kind == JobEnvironment::Kind::kMpi) return rendezvous_by_mpi(job, timeout);
  } catch (const RendezvousError& error) {
    throw RendezvousError("rank {} of {}: {}", job.place.rank, job.place.world_size, error.what());
  }
  return {std::make_shared<MemoryStore>(), nullptr, job.token, "127.0.0.1"};
}

}  // namespace lockstep
