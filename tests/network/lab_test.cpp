// The laboratory itself: its rates, losses and cuts are real, and nothing of it outlives the test.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "src/comm/net/socket.h"
#include "tests/network/network_lab.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void on(const NetworkLab& lab, int machine, const std::function<void()>& body) {
  std::thread([&] {
    lab.enter(machine);
    body();
  }).join();
}

bool reaches(const NetworkLab& lab, int from, const std::string& host, Clock::duration within = 10s) {
  bool reached = false;
  Fd listener;
  on(lab, 1, [&] { listener = listen_tcp(host, 0); });
  on(lab, from, [&] {
    std::string why;
    reached = static_cast<bool>(try_connect_tcp(host, local_endpoint(listener.get()).port, Clock::now() + within, why));
  });
  return reached;
}

class Lab : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(GetParam()); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};
INSTANTIATE_TEST_SUITE_P(EveryLink, Lab, ::testing::Values(Link::kSwitch, Link::kRelay),
                         [](const auto& tested) { return tested.param == Link::kSwitch ? "switch" : "relay"; });

TEST_P(Lab, MachinesReachEachOtherAndACutEndsThat) {
  NetworkLab lab(3, GetParam());
  EXPECT_TRUE(reaches(lab, 0, NetworkLab::address(1)));
  EXPECT_TRUE(reaches(lab, 2, NetworkLab::address(1)));
  if (NetworkLab::has_ipv6()) {
    EXPECT_TRUE(reaches(lab, 0, NetworkLab::address6(1)));
  }
  EXPECT_GT(lab.traffic(1).received, 0u);
  lab.cut(1);
  EXPECT_FALSE(reaches(lab, 0, NetworkLab::address(1), 500ms));
  lab.mend(1);
  EXPECT_TRUE(reaches(lab, 0, NetworkLab::address(1)));
}

TEST_P(Lab, ARateLimitHolds) {
  if (const std::string obstacle = NetworkLab::obstacle_to_limits(GetParam()); !obstacle.empty())
    GTEST_SKIP() << obstacle;
  NetworkLab lab(2, GetParam());
  lab.limit_rate(0, "80mbit");
  Fd listener;
  on(lab, 1, [&] { listener = listen_tcp(NetworkLab::address(1), 0); });
  const auto begin = Clock::now();
  constexpr std::size_t kBytes = 3'000'000;  // 0.3 s
  std::thread sender([&] {
    lab.enter(0);
    std::string why;
    const Fd socket =
        try_connect_tcp(NetworkLab::address(1), local_endpoint(listener.get()).port, Clock::now() + 5s, why);
    const std::vector<std::byte> data(kBytes);
    EXPECT_EQ(send_all(socket.get(), data, Clock::now() + 20s), IoResult::kDone);
    std::byte end;
    EXPECT_EQ(receive_all(socket.get(), {&end, 1}, Clock::now() + 20s), IoResult::kDone);
  });
  pollfd coming{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&coming, 1, 5000), 1);
  const Fd socket(::accept(listener.get(), nullptr, nullptr));
  std::vector<std::byte> data(kBytes);
  EXPECT_EQ(receive_all(socket.get(), data, Clock::now() + 20s), IoResult::kDone);
  EXPECT_EQ(send_all(socket.get(), std::span(data).first(1), Clock::now() + 20s), IoResult::kDone);
  sender.join();
  EXPECT_GT(Clock::now() - begin, 250ms);
}

// Sends numbered datagrams from machine 0 to machine 1; returns them in the order of arrival.
std::vector<int> datagrams_through(NetworkLab& lab, int count) {
  Fd receiver;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  ::inet_pton(AF_INET, NetworkLab::address(1).c_str(), &address.sin_addr);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  on(lab, 1, [&] {
    receiver = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(receiver.get(), generic, sizeof address), 0);
  });
  on(lab, 0, [&] {
    const Fd sender(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(::sendto(sender.get(), &i, sizeof i, 0, generic, sizeof address), static_cast<ssize_t>(sizeof i));
      std::this_thread::sleep_for(100us);
    }
  });
  std::vector<int> numbers;
  for (pollfd item{receiver.get(), POLLIN, 0}; ::poll(&item, 1, 300) == 1;) {
    int number = -1;
    EXPECT_EQ(::recv(receiver.get(), &number, sizeof number, 0), static_cast<ssize_t>(sizeof number));
    numbers.push_back(number);
  }
  return numbers;
}

TEST(Relay, LosesAndReordersAsItIsTold) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kRelay); !obstacle.empty()) GTEST_SKIP() << obstacle;
  constexpr int kCount = 200;  // as many as a receiver keeps if it reads later
  NetworkLab lab(2, Link::kRelay);
  const auto sorted = [](const std::vector<int>& numbers) { return std::is_sorted(numbers.begin(), numbers.end()); };
  std::vector<int> numbers = datagrams_through(lab, kCount);
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kCount));
  EXPECT_TRUE(sorted(numbers));
  lab.relay().set({.delay = 1ms, .loss = 0.1});
  numbers = datagrams_through(lab, kCount);
  EXPECT_LT(numbers.size(), kCount * 0.97);
  EXPECT_GT(numbers.size(), kCount * 0.8);
  EXPECT_TRUE(sorted(numbers));
  lab.relay().set({.delay = 1ms, .overtaken = 0.1});
  numbers = datagrams_through(lab, kCount);
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kCount));
  EXPECT_FALSE(sorted(numbers));
}

// Whether a process is in that network.
bool is_in_use(ino_t network) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    struct stat status {};
    if (::stat(("/proc/" + name + "/ns/net").c_str(), &status) == 0 && status.st_ino == network) return true;
  }
  return false;
}

[[noreturn]] void live_in_a_lab(int report) {
  try {
    const NetworkLab lab(2);
    struct stat status {};
    ::fstat(lab.network(1), &status);
    std::thread inside([&] {
      lab.enter(1);
      if (::write(report, &status.st_ino, sizeof status.st_ino) > 0) ::sleep(60);
      ::_exit(0);
    });
    ::sleep(60);
  } catch (const std::exception&) {
  }
  ::_exit(1);
}

// A process inside a machine dies with the test's process here (those of Child do so by other means), and the machine
// with it.
TEST(LabOfAKilledProcess, LeavesNothing) {
  if (const std::string obstacle = NetworkLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) live_in_a_lab(pipe[1]);
  ::close(pipe[1]);
  ino_t network = 0;
  ASSERT_EQ(::read(pipe[0], &network, sizeof network), static_cast<ssize_t>(sizeof network));
  // The interfaces have no name here, and neither does the namespace.
  EXPECT_EQ(std::system("ip link show lab0 >/dev/null 2>&1 || ip link show port0 >/dev/null 2>&1") == 0, false);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(is_in_use(network));
  ::close(pipe[0]);
}

}  // namespace
}  // namespace lockstep::testing
