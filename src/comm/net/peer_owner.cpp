#include "src/comm/net/peer_owner.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "lockstep/core/environment.h"
#include "src/comm/net/socket.h"

namespace lockstep {

namespace {

// The form in the table: the address in 32-bit words as they are in memory, the port as a number.
std::string table_text(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return fmt::format("{:08X}:{:04X}", v4.sin_addr.s_addr, ntohs(v4.sin_port));
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  std::string text;
  for (int word = 0; word < 4; ++word) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, v6.sin6_addr.s6_addr + 4 * word, sizeof bits);
    text += fmt::format("{:08X}", bits);
  }
  return fmt::format("{}:{:04X}", text, ntohs(v6.sin6_port));
}

// Established connections only: the kernel lists a socket that its process has closed as root's until it drops it.
std::optional<uid_t> owner_in_table(const char* table, const std::string& local, const std::string& remote) {
  static constexpr std::string_view kEstablished = "01";
  std::ifstream rows(table);
  std::string row;
  std::getline(rows, row);  // the heading
  while (std::getline(rows, row)) {
    std::istringstream fields(row);
    std::string number, from, to, state, queues, timer, retransmits;
    uid_t owner = 0;
    if (fields >> number >> from >> to >> state >> queues >> timer >> retransmits >> owner && from == local &&
        to == remote && state == kEstablished)
      return owner;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uid_t> owner_of_peer(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0) return std::nullopt;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0) return std::nullopt;
  // A table that changes during the read may omit a row.
  constexpr int kTries = 3;
  for (int tries = 0; tries < kTries; ++tries)
    if (const auto owner = owner_in_table(here.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6",
                                          table_text(there), table_text(here)))
      return owner;
  return std::nullopt;
}

bool is_of_own_user(int fd) {
  const auto owner = owner_of_peer(fd);
  return owner && (*owner == geteuid() || *owner == 0);
}

bool is_excluded(std::string_view token, int fd) {
  return token.empty() && env::integer(env::kInsecure, 0, 1).value_or(0) != 1 && !is_of_own_user(fd);
}

const char* refusal_reason(std::string_view token) {
  return token.empty() ? "is another user's or has closed, and the job has no token" : "does not know the job's token";
}

}  // namespace lockstep
