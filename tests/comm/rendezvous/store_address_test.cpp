// Where rank 0 serves the store, depending on what MASTER_ADDR means there.
#include "src/comm/rendezvous/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/net/host_names.h"
#include "src/comm/net/socket.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kOwn = {"127.0.0.1", "10.1.0.5", "::1", "fd00::5"};

TEST(StoreAddress, AsARuleMasterAddrIsRankZerosOwn) {
  EXPECT_THAT(store_addresses("head", {"10.1.0.5"}, kOwn, false, ""), ElementsAre("10.1.0.5"));
  EXPECT_THAT(store_addresses("head", {"10.9.9.9"}, kOwn, false, ""), ElementsAre("10.9.9.9"))
      << "listening says what is wrong";
  EXPECT_THAT(store_addresses("head", {}, kOwn, false, "10.1.0.5"), IsEmpty()) << "it must resolve first";
}

TEST(StoreAddress, AServicesNameThatLeadsHereIsUsed) {
  EXPECT_THAT(store_addresses("job-master-0", {"10.1.0.5", "fd00::5"}, kOwn, true, "127.0.0.1"),
              ElementsAre("10.1.0.5", "fd00::5"));
  EXPECT_THAT(store_addresses("0.0.0.0", {"0.0.0.0"}, kOwn, true, ""), ElementsAre("0.0.0.0"));
  EXPECT_THAT(store_addresses("127.0.0.1", {"127.0.0.1"}, kOwn, true, ""), ElementsAre("127.0.0.1"))
      << "said in numbers, it is meant";
  EXPECT_THAT(store_addresses("127.0.0.2", {"127.0.0.2"}, kOwn, true, "10.1.0.5"), ElementsAre("127.0.0.2"));
}

TEST(StoreAddress, ElseTheChosenInterfaceElseAll) {
  for (const std::vector<std::string>& resolved :
       std::vector<std::vector<std::string>>{{}, {"10.96.0.77"}, {"127.0.0.1", "::1"}, {"127.0.1.1"}}) {
    EXPECT_THAT(store_addresses("localhost", resolved, kOwn, true, ""), ElementsAre("::", "0.0.0.0"));
    EXPECT_THAT(store_addresses("localhost", resolved, kOwn, true, "10.1.0.5"), ElementsAre("10.1.0.5"));
  }
}

TEST(AddressFor, TheNetworkThatAllShare) {
  const MachineAddresses a{"a", {"192.168.7.1", "10.0.0.1", "fd00::1"}}, b{"b", {"10.0.0.2", "172.16.0.9"}},
      c{"c", {"172.16.0.10", "10.0.0.3"}};
  EXPECT_EQ(address_for(a, {a, b, c}), "10.0.0.1");
  EXPECT_EQ(address_for(b, {a, b, c}), "10.0.0.2");
  EXPECT_EQ(address_for(a, {a, a}), "192.168.7.1") << "nobody else: any";
}

TEST(AddressFor, ABridgeThatEveryMachineHasIsNone) {
  const MachineAddresses a{"a", {"172.17.0.1", "10.0.0.1"}}, b{"b", {"172.17.0.1", "10.4.0.2"}};
  EXPECT_EQ(address_for(a, {a, b}), "10.0.0.1");
  EXPECT_EQ(address_for({"a", {"172.17.0.1"}}, {a, b}), "");
  EXPECT_EQ(address_for({"a", {}}, {b}), "");
}

TEST(AddressFor, SixAsWellAsFour) {
  const MachineAddresses a{"a", {"10.0.0.1", "fd00:1::1"}}, b{"b", {"fd00:1::2"}};
  EXPECT_EQ(address_for(a, {a, b}), "fd00:1::1");
}

TEST(HostNames, BracketsAndNumbers) {
  EXPECT_EQ(without_brackets("[::1]"), "::1");
  EXPECT_EQ(without_brackets("head"), "head");
  EXPECT_EQ(without_brackets("[]"), "[]");
  std::string why;
  EXPECT_THAT(resolve_host("127.0.0.1", std::chrono::steady_clock::now() + std::chrono::seconds(20), why),
              ElementsAre("127.0.0.1"));
  EXPECT_THAT(resolve_host("::1", std::chrono::steady_clock::now() + std::chrono::seconds(20), why),
              ElementsAre("::1"));
  EXPECT_THAT(resolve_host("no-such-host.invalid", std::chrono::steady_clock::now() + std::chrono::seconds(20), why),
              IsEmpty());
  EXPECT_NE(why, "");
}

TEST(HostNames, ListensOnTheFirstAddressThatThisMachineHas) {
  EXPECT_EQ(local_endpoint(listen_on_one_of({"192.0.2.1", "127.0.0.1"}, 0).get()).host, "127.0.0.1");
}

}  // namespace
}  // namespace lockstep
