// Finds the owner of the process at the other end of a loopback connection.
#include "src/comm/net/peer_owner.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "src/comm/net/interface.h"
#include "src/comm/net/socket.h"
#include "tests/support/limits_here.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A connection to a listener here from a child process of another user; both ends exist until this object is destroyed.
class Visitor {
 public:
  Visitor(const char* host, uid_t user, bool resets = false, const std::string& from = "")
      : listener_(listen_tcp(host, 0)) {
    const Endpoint door = local_endpoint(listener_.get());
    if (pipe(until_) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      std::string why;
      close(until_[1]);
      if (user != geteuid() && setuid(user) != 0) _exit(2);
      const Fd fd = try_connect_tcp(door.host, door.port, std::chrono::steady_clock::now() + 20s, why, from);
      const linger at_once{1, 0};
      if (resets && setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) != 0) _exit(4);
      char end = 0;
      _exit(fd && read(until_[0], &end, 1) == 0 ? 0 : 3);
    }
    close(until_[0]);
    for (int tries = 0; tries < 2000 && !accepted_; ++tries) {
      accepted_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!accepted_) usleep(10000);
    }
  }
  ~Visitor() {
    if (child_ != -1) leave();
  }
  int fd() const { return accepted_.get(); }
  // Ends the process at the other end, which closes the connection.
  void leave() {
    close(std::exchange(until_[1], -1));
    waitpid(std::exchange(child_, -1), nullptr, 0);
  }

 private:
  Fd listener_, accepted_;
  int until_[2] = {-1, -1};
  pid_t child_ = -1;
};

TEST(PeerOwner, IsTheUserOfTheConnectingProcess) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    try {
      listen_tcp(host, 0);
    } catch (const std::exception&) {
      continue;  // a system without IPv6
    }
    const Visitor own(host, geteuid());
    ASSERT_GE(own.fd(), 0);
    EXPECT_EQ(owner_of_peer(own.fd()), geteuid()) << host;
    EXPECT_TRUE(is_of_own_user(own.fd()));
    if (!testing::can_be_other_users()) continue;
    const Visitor other(host, 12345);
    ASSERT_GE(other.fd(), 0);
    EXPECT_EQ(owner_of_peer(other.fd()), 12345u) << host;
    EXPECT_FALSE(is_of_own_user(other.fd()));
    EXPECT_TRUE(is_excluded("", other.fd()));
    EXPECT_FALSE(is_excluded("secret", other.fd())) << "the token decides";
  }
}

// The other end chooses its address.
TEST(PeerOwner, IsFoundFromEveryAddressOfTheMachine) {
  const std::vector<std::string> addresses = addresses_of_this_machine();
  for (const std::string& from : addresses) {
    if (is_ipv6(from)) continue;
    const Visitor own("127.0.0.1", geteuid(), false, from);
    ASSERT_GE(own.fd(), 0) << from;
    EXPECT_TRUE(is_of_own_user(own.fd())) << from;
    if (!testing::can_be_other_users()) continue;
    const Visitor other("127.0.0.1", 12345, false, from);
    ASSERT_GE(other.fd(), 0) << from;
    EXPECT_FALSE(is_of_own_user(other.fd())) << from;
    EXPECT_TRUE(is_excluded("", other.fd())) << from;
  }
  EXPECT_FALSE(addresses.empty());
}

// The kernel lists a closed socket as root's: data that its process sent before must not count as root's.
TEST(PeerOwner, AConnectionThatTheOtherEndHasClosedIsNobodys) {
  for (const bool resets : {false, true}) {
    Visitor visitor("127.0.0.1", testing::can_be_other_users() ? 12345 : geteuid(), resets);
    ASSERT_GE(visitor.fd(), 0);
    visitor.leave();
    EXPECT_EQ(owner_of_peer(visitor.fd()), std::nullopt) << resets;
    EXPECT_FALSE(is_of_own_user(visitor.fd())) << resets;
    EXPECT_TRUE(is_excluded("", visitor.fd())) << resets;
  }
}

}  // namespace
}  // namespace lockstep
