#include "src/launch/memory_node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::launch {

namespace {

constexpr std::size_t kMaxNodes = 1024;
constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::string memory_choice_obstacle() {
  int mode = MPOL_DEFAULT;
  if (::syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, nullptr, 0ul) != 0)
    return fmt::format("the system refuses to say where memory comes from (get_mempolicy: {})", std::strerror(errno));
  return mode == MPOL_DEFAULT ? "" : "the launcher was started with a policy of its own (numactl)";
}

bool prefer_memory_of(int node) {
  std::array<unsigned long, kMaxNodes / kBits> nodes{};
  const auto number = static_cast<std::size_t>(node);
  if (number >= kMaxNodes) return errno = EINVAL, false;
  nodes[number / kBits] = 1ul << number % kBits;
  return ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMaxNodes) == 0;
}

}  // namespace lockstep::launch
