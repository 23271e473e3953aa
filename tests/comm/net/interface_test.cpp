// The choice of the address at which a rank is reached, and sockets bound to it.
#include "src/comm/net/interface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

const std::vector<InterfaceAddress> kMachine = {
    {"lo", "127.0.0.1"},     {"eth0", "10.0.0.5"},   {"lo", "::1"}, {"eth0", "fe80::5%eth0"},
    {"eth0", "2001:db8::5"}, {"ib0", "192.168.7.1"}, {"eth1", ""},  {"ib0", "fe80::5%ib0"}};

TEST(ChooseAddress, TakesAnInterfaceByName) {
  EXPECT_EQ(choose_address("eth0", kMachine, "10.0.0.1"), "10.0.0.5");
  EXPECT_EQ(choose_address("eth0", kMachine, "2001:db8::1"), "2001:db8::5") << "routed before link-local";
  EXPECT_EQ(choose_address("ib0", kMachine, "2001:db8::1"), "fe80::5%ib0") << "of the family of the route";
  EXPECT_EQ(choose_address("ib0", kMachine, ""), "192.168.7.1");
  EXPECT_EQ(choose_address("lo", kMachine, "::1"), "::1");
}

TEST(ChooseAddress, TakesAnAddressHoweverItIsSpelled) {
  EXPECT_EQ(choose_address("10.0.0.5", kMachine, "::1"), "10.0.0.5");
  EXPECT_EQ(choose_address("2001:0db8:0::5", kMachine, "10.0.0.1"), "2001:db8::5");
  EXPECT_EQ(choose_address("fe80::5%ib0", kMachine, "10.0.0.1"), "fe80::5%ib0");
}

TEST(ChooseAddress, ListsWhatThereIs) {
  for (const char* wrong : {"eth7", "10.0.0.6", "fe80::5%eth1", "eth1"})
    EXPECT_THAT(message_of([&] { choose_address(wrong, kMachine, "10.0.0.1"); }),
                AllOf(HasSubstr(std::string("LOCKSTEP_INTERFACE=") + wrong),
                      HasSubstr("lo (127.0.0.1, ::1), eth0 (10.0.0.5"), HasSubstr("eth1 (no address)")));
}

TEST(LinkLocalAddresses, LoseTheirScopeForOthersAndGetTheReadersOwn) {
  EXPECT_TRUE(is_link_local("fe80::5%eth0"));
  EXPECT_FALSE(is_link_local("2001:db8::5"));
  EXPECT_FALSE(is_link_local("10.0.0.5"));
  EXPECT_EQ(without_scope("fe80::5%eth0"), "fe80::5");
  EXPECT_EQ(with_scope_of("fe80::6", "fe80::5%eth0"), "fe80::6%eth0");
  EXPECT_EQ(with_scope_of("2001:db8::6", "fe80::5%eth0"), "2001:db8::6");
  EXPECT_EQ(with_scope_of("10.0.0.6", "10.0.0.5"), "10.0.0.6");
}

TEST(InterfaceAddresses, HoldTheLoopback) {
  EXPECT_THAT(interface_addresses(), Contains(Field(&InterfaceAddress::address, "127.0.0.1")));
}

class OwnAddress : public ::testing::Test {
 protected:
  ~OwnAddress() override { unsetenv(env::kInterface); }
};

TEST_F(OwnAddress, IsThatOfTheRouteUnlessTheInterfaceIsNamed) {
  EXPECT_EQ(own_address("127.0.0.1", 1, soon()), "127.0.0.1");
  setenv(env::kInterface, "lo", 1);
  EXPECT_EQ(own_address("127.0.0.1", 1, soon()), "127.0.0.1");
  setenv(env::kInterface, "127.0.0.1", 1);
  EXPECT_EQ(own_address("no name resolves to this.invalid", 1, soon()), "127.0.0.1");
  setenv(env::kInterface, "no-such-interface", 1);
  EXPECT_THAT(message_of([] { own_address("127.0.0.1", 1, soon()); }),
              AllOf(HasSubstr("no-such-interface"), HasSubstr("lo (127.0.0.1")));
}

TEST_F(OwnAddress, NeedsARoute) {
  EXPECT_THAT(message_of([] { address_towards("no name resolves to this.invalid", 1, soon()); }),
              HasSubstr("does not resolve"));
}

TEST(Connecting, StartsFromTheAddressThatIsAsked) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  const Endpoint to = local_endpoint(listener.get());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string why;
  const Fd client = try_connect_tcp(to.host, to.port, deadline, why, "127.0.0.3");
  ASSERT_TRUE(client) << why;
  EXPECT_EQ(local_endpoint(client.get()).host, "127.0.0.3");
  EXPECT_FALSE(try_connect_tcp(to.host, to.port, deadline, why, "192.0.2.1"));
  EXPECT_THAT(why, HasSubstr("192.0.2.1")) << "names the address that this machine does not have";
}

}  // namespace
}  // namespace lockstep
