// Ten thousand invalid messages to the store, from unauthenticated peers and from misbehaving members, while correct
// clients use it.
#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <thread>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/store/store_protocol.h"
#include "tests/security/unauthenticated_peer.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
namespace protocol = store_protocol;

constexpr int kStoreMessages = 10'000;
constexpr const char* kToken = "the job's secret";
constexpr std::size_t kStoreDrippers = 32;

std::size_t open_descriptors() {
  std::size_t count = 0;
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
  }
  return count;
}

std::size_t resident_mib() {
  std::size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096 >> 20;
}

constexpr std::size_t kMostMib = kSanitized ? 768 : 96;  // sanitizers do not reuse freed memory

// Sets, gets and counts, and compares all answers.
class HonestClient {
 public:
  HonestClient(const Endpoint& endpoint, int number) : thread_([this, endpoint, number] { work(endpoint, number); }) {}
  int finish() {
    stop_.store(true);
    thread_.join();
    return rounds_;
  }

 private:
  void work(const Endpoint& endpoint, int number) {
    const std::string mine = "honest/" + std::to_string(number) + "/";
    try {
      const auto steady = connect_store(endpoint, kToken, 20s);
      for (; !stop_.load(); ++rounds_) {
        const std::string value(static_cast<std::size_t>(rounds_ % 3000), static_cast<char>('a' + rounds_ % 26));
        steady->set(mine + "value", value);
        if (steady->get(mine + "value", 20s) != value) throw Error("another value came back");
        if (steady->add(mine + "count", 1) != rounds_ + 1) throw Error("the counter is wrong");
        if (rounds_ % 50 == 0) connect_store(endpoint, kToken, 20s)->set(mine + "again", "x");
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << "honest client " << number << ", round " << rounds_ << ": " << error.what();
    }
  }

  std::atomic<bool> stop_{false};
  int rounds_ = 0;
  std::thread thread_;
};

class Attack {
 public:
  Attack(const Endpoint& endpoint, std::uint64_t seed) : port_(endpoint.port), random_(seed) {}

  void one_message() {
    switch (random_.below(8)) {
      case 0: return noise();
      case 1:
      case 2: return bad_proof();
      case 3: return replayed_proof();
      case 4: return drip();
      default: return member_gone_mad();
    }
  }
  void leave() { drippers_.clear(); }
  int accepted_members() const { return members_; }

 private:
  void noise() {
    UnauthenticatedPeer unauthenticated(port_);
    if (unauthenticated) unauthenticated.say(random_.noise(400));
  }

  protocol::ClientProof proof_for(const protocol::Hello& hello) {
    protocol::ClientProof proof{protocol::kMagic, make_nonce(), {}};
    proof.proof = prove(kToken, Role::kStoreClient, proof.client_nonce, hello.server_nonce);
    return proof;
  }

  // Only exactly the right proof may be accepted.
  void expect_refusal(UnauthenticatedPeer& unauthenticated) {
    protocol::ServerProof answer{};
    if (unauthenticated.hear(answer)) {
      EXPECT_EQ(answer.accepted, 0u);
    }
  }

  void bad_proof() {
    UnauthenticatedPeer unauthenticated(port_);
    protocol::Hello hello;
    if (!unauthenticated || !unauthenticated.hear(hello)) return;
    const Bytes valid = bytes_of(proof_for(hello));
    const Bytes message = random_.mutated(valid);
    if (!unauthenticated.say(message)) return;
    const bool begins_validly =
        message.size() >= valid.size() && std::equal(valid.begin(), valid.end(), message.begin());
    if (message.size() >= valid.size() && !begins_validly) expect_refusal(unauthenticated);
  }

  // The proof of another connection: the server's nonce differs.
  void replayed_proof() {
    UnauthenticatedPeer first(port_), second(port_);
    protocol::Hello hello;
    if (!first || !second || !first.hear(hello)) return;
    const Bytes proof = bytes_of(proof_for(hello));
    if (second.hear(hello) && second.say(proof)) expect_refusal(second);
  }

  // Sends little and stays connected; the oldest connection is closed when there are too many.
  void drip() {
    UnauthenticatedPeer unauthenticated(port_);
    protocol::Hello hello;
    if (!unauthenticated || !unauthenticated.hear(hello)) return;
    Bytes proof = bytes_of(proof_for(hello));
    proof.resize(random_.below(proof.size()));
    unauthenticated.drip(proof);
    drippers_.push_back(std::move(unauthenticated));
    if (drippers_.size() > kStoreDrippers) drippers_.pop_front();
  }

  void member_gone_mad() {
    UnauthenticatedPeer member(port_);
    protocol::Hello hello;
    protocol::ServerProof answer{};
    if (!member || !member.hear(hello) || !member.say(bytes_of(proof_for(hello))) || !member.hear(answer)) return;
    ASSERT_EQ(answer.accepted, 1u);
    ++members_;
    protocol::RequestHeader header{static_cast<protocol::Request>(1 + random_.below(4)), 8, 16, 0};
    Bytes request = bytes_of(header);
    const char text[] = "mad/key!sixteen bytes...";
    const auto* data = reinterpret_cast<const std::byte*>(text);
    request.insert(request.end(), data, data + 24);
    switch (random_.below(5)) {
      case 0:
        header.key_bytes = static_cast<std::uint32_t>(protocol::kMaxKeyBytes + 1 + random_.below(1u << 30));
        request = bytes_of(header);
        if (member.say(request)) {
          EXPECT_TRUE(member.is_closed_within(2s)) << "a key of " << header.key_bytes << " bytes";
        }
        return;
      case 1:
        header.value_bytes = static_cast<std::uint32_t>(protocol::kMaxValueBytes + 1 + random_.below(1u << 30));
        request = bytes_of(header);
        if (member.say(request)) {
          EXPECT_TRUE(member.is_closed_within(2s)) << "a value of " << header.value_bytes << " bytes";
        }
        return;
      case 2:
        header.request = static_cast<protocol::Request>(5 + random_.below(1u << 30));
        std::memcpy(request.data(), &header, sizeof header);
        if (member.say(request)) {
          EXPECT_TRUE(member.is_closed_within(2s)) << "an unknown request";
        }
        return;
      case 3:  // announces the largest allowed value, and sends little of it
        header.value_bytes = static_cast<std::uint32_t>(protocol::kMaxValueBytes);
        std::memcpy(request.data(), &header, sizeof header);
        member.say(request);
        drippers_.push_back(std::move(member));
        if (drippers_.size() > kStoreDrippers) drippers_.pop_front();
        return;
      default: member.say(random_.mutated(request));
    }
  }

  std::uint16_t port_;
  Mutator random_;
  std::deque<UnauthenticatedPeer> drippers_;
  int members_ = 0;
};

TEST(StoreFuzz, TenThousandBadMessagesChangeNothingForTheHonest) {
  const std::uint64_t seed = fuzz_seed();
  std::cout << "LOCKSTEP_FUZZ_SEED=" << seed << std::endl;
  const std::size_t descriptors = open_descriptors(), memory = resident_mib();
  {
    StoreServerOptions options;
    options.token = kToken;
    const StoreServer server(options);
    HonestClient one(server.endpoint(), 1), two(server.endpoint(), 2);
    Attack attack(server.endpoint(), seed);
    for (int i = 0; i < kStoreMessages && !HasFatalFailure(); ++i) attack.one_message();
    EXPECT_LT(resident_mib(), memory + kMostMib);
    EXPECT_LT(open_descriptors(), descriptors + 2 * kStoreDrippers + 100)
        << "unauthenticated peers that have left keep descriptors";
    attack.leave();
    EXPECT_GT(attack.accepted_members(), kStoreMessages / 8);
    EXPECT_GT(one.finish(), 20);
    EXPECT_GT(two.finish(), 20);
    EXPECT_EQ(connect_store(server.endpoint(), kToken, 20s)->add("honest/after", 1), 1);
  }
  EXPECT_LE(open_descriptors(), descriptors + 2);
}

}  // namespace
}  // namespace lockstep::testing
