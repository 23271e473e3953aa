#include "src/comm/rendezvous/mpi_rendezvous.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/interface.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/comm/rendezvous/group_rendezvous.h"
#include "src/comm/rendezvous/store_address.h"
#if LOCKSTEP_WITH_MPI
#include "src/comm/mpi/library/mpi_texts.h"
#endif

namespace lockstep {

namespace {

constexpr const char* kWithoutMpi = "or set MASTER_ADDR, MASTER_PORT and LOCKSTEP_TOKEN for all ranks (mpirun -x)";

}  // namespace

#if LOCKSTEP_WITH_MPI

namespace {

constexpr std::size_t kMostAddresses = 16;

// Two network namespaces of one kernel count as two machines, since they have different addresses.
std::string machine_name() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat net {};
  return fmt::format("{}-{}", boot, ::stat("/proc/self/ns/net", &net) == 0 ? net.st_ino : 0);
}

MachineAddresses this_machine() {
  MachineAddresses own{machine_name(), {}};
  for (const InterfaceAddress& each : interface_addresses())
    if (!each.address.empty() && !is_loopback(each.address) && !is_link_local(each.address) &&
        own.addresses.size() < kMostAddresses)
      own.addresses.push_back(each.address);
  return own;
}

std::string encode_addresses(const MachineAddresses& machine) {
  std::string text = machine.machine;
  for (const std::string& address : machine.addresses) text += " " + address;
  return text;
}

MachineAddresses decode_addresses(const std::string& text) {
  std::istringstream words(text);
  MachineAddresses machine;
  words >> machine.machine;
  for (std::string address; words >> address;) machine.addresses.push_back(address);
  return machine;
}

std::string rank_zeros_address(const std::vector<std::string>& machines) {
  if (const auto wanted = env::text(env::kInterface)) return choose_address(*wanted, interface_addresses(), "");
  std::vector<MachineAddresses> all;
  for (const std::string& text : machines) all.push_back(decode_addresses(text));
  const std::string address = address_for(this_machine(), all);
  if (address.empty())
    throw RendezvousError(
        "rank 0's machine has no address of its own by which the other machines could reach it: set {} there",
        env::kInterface);
  return address;
}

// This is the first use of MPI, which is in this build and may be missing on this machine.
std::vector<std::string> addresses_of_all(int ranks, std::chrono::milliseconds timeout) {
  try {
    return mpi::all_gather_texts(encode_addresses(this_machine()), ranks, timeout);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("mpirun started {} ranks on several machines, and MPI is to carry rank 0's address: {}; {}",
                          ranks, error.what(), kWithoutMpi);
  }
}

// Returns "host port token", or kProblem and the reason why rank 0 cannot serve, so that all ranks report the same.
std::string serve(const JobEnvironment& job, const std::vector<std::string>& machines, Rendezvous& rendezvous) {
  try {
    rendezvous.token = job.token.empty() ? fresh_token() : job.token;
    rendezvous.server = std::make_shared<StoreServer>(
        StoreServerOptions{.host = rank_zeros_address(machines), .token = rendezvous.token});
    const Endpoint endpoint = rendezvous.server->endpoint();
    return fmt::format("{} {} {}", without_scope(endpoint.host), endpoint.port, rendezvous.token);
  } catch (const Error& error) {
    return kProblem + std::string(error.what()).substr(0, mpi::kMaxTextBytes - 1);
  }
}

}  // namespace

Rendezvous rendezvous_by_mpi(const JobEnvironment& job, std::chrono::milliseconds timeout) {
  Rendezvous rendezvous;
  const int ranks = job.place.world_size;
  const auto machines = addresses_of_all(ranks, timeout);
  const std::string contact =
      mpi::broadcast_text(job.place.rank == 0 ? serve(job, machines, rendezvous) : "", ranks, timeout);
  if (contact[0] == kProblem) throw RendezvousError("{}", contact.substr(1));
  std::istringstream words(contact);
  Endpoint endpoint;
  words >> endpoint.host >> endpoint.port;
  std::getline(words >> std::ws, rendezvous.token, '\0');  // it may contain spaces and line breaks
  if (words.fail()) throw RendezvousError("rank 0 sent no address through MPI");
  rendezvous.advertise_address = own_address(endpoint.host, endpoint.port, std::chrono::steady_clock::now() + timeout);
  endpoint.host = with_scope_of(endpoint.host, rendezvous.advertise_address);
  rendezvous.store = connect_store(endpoint, rendezvous.token, timeout);
  return rendezvous;
}

#else

Rendezvous rendezvous_by_mpi(const JobEnvironment& job, std::chrono::milliseconds) {
  throw InvalidArgument(
      "mpirun started {} ranks on several machines, and this build has no MPI to carry rank 0's address: install Open "
      "MPI's headers (libopenmpi-dev) and build again, {}",
      job.place.world_size, kWithoutMpi);
}

#endif

}  // namespace lockstep
