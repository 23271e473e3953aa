#include "tests/network/network_lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

namespace lockstep::testing {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("network lab: " + what + ": " + std::strerror(errno));
}

// Runs the body on another thread, so that the caller stays in its namespace.
void elsewhere(const std::function<void()>& body) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

void inside(int network, const std::function<void()>& body) {
  elsewhere([&] {
    if (::setns(network, CLONE_NEWNET) != 0) fail("setns");
    body();
  });
}

Fd new_network() {
  Fd network;
  elsewhere([&] {
    if (::unshare(CLONE_NEWNET) != 0) fail("unshare(CLONE_NEWNET)");
    network = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!network) fail("/proc/thread-self/ns/net");
  });
  return network;
}

// `tool` is "ip" or "tc"; `commands` has one command on each line, without the tool's name.
void configure(int network, const std::string& tool, const std::string& commands) {
  inside(network, [&] {
    std::FILE* pipe = ::popen((tool + " -batch -").c_str(), "we");
    if (pipe == nullptr) fail(tool);
    std::fputs(commands.c_str(), pipe);
    if (::pclose(pipe) != 0) throw std::runtime_error("network lab: " + tool + " refused one of:\n" + commands);
  });
}

std::string port(int machine) { return "port" + std::to_string(machine); }

Fd open_tunnel(int network) {
  Fd tunnel;
  inside(network, [&] {
    tunnel = Fd(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ifreq request{};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::strcpy(request.ifr_name, "lab0");
    if (!tunnel || ::ioctl(tunnel.get(), TUNSETIFF, &request) != 0) fail("/dev/net/tun");
  });
  return tunnel;
}

// The kernel makes an IPv6 address usable some time after its link came up; until then this machine does not reach
// itself.
void wait_for_address6(const std::string& address) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  sockaddr_in6 self{};
  self.sin6_family = AF_INET6;
  ::inet_pton(AF_INET6, address.c_str(), &self.sin6_addr);
  socklen_t size = sizeof self;
  while (std::chrono::steady_clock::now() < deadline) {
    const Fd socket(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket) fail("a socket");
    const timeval patience{0, 50'000};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    self.sin6_port = 0;
    char byte = 1;
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&self), sizeof self) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&self), &size) == 0 &&
        ::sendto(socket.get(), &byte, 1, 0, reinterpret_cast<const sockaddr*>(&self), size) == 1 &&
        ::recv(socket.get(), &byte, 1, 0) == 1)
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("network lab: " + address + " does not reach itself");
}

std::string limit_of(const std::string& device, const std::string& rate) {
  return fmt::format("qdisc add dev {} root tbf rate {} burst 128kb latency 100ms\n", device, rate);
}

}  // namespace

std::string NetworkLab::obstacle(Link link) {
  for (const char* tool : {"ip", "tc"})
    if (std::system(fmt::format("command -v {} >/dev/null", tool).c_str()) != 0)
      return fmt::format("there is no `{}` (iproute2)", tool);
  try {
    const Fd network = new_network();
    configure(network.get(), "ip", "link set lo up\n");
    if (link == Link::kRelay) open_tunnel(network.get());
    if (link == Link::kSwitch)
      configure(network.get(), "ip", "link add name lab0 type veth peer name port0\nlink add name br0 type bridge\n");
  } catch (const std::exception& error) {
    return fmt::format("{} (it takes root, or CAP_SYS_ADMIN and CAP_NET_ADMIN)", error.what());
  }
  return "";
}

std::string NetworkLab::obstacle_to_limits(Link link) {
  if (std::string first = obstacle(link); !first.empty()) return first;
  try {
    configure(new_network().get(), "tc", limit_of("lo", "1mbit"));
  } catch (const std::exception& error) {
    return fmt::format("{} (it takes the kernel's token bucket filter, sch_tbf)", error.what());
  }
  return "";
}

bool NetworkLab::has_ipv6() { return ::access("/proc/net/if_inet6", F_OK) == 0; }

NetworkLab::NetworkLab(int machines, Link link) : link_(link) {
  if (link_ == Link::kSwitch) {
    switch_ = new_network();
    configure(switch_.get(), "ip", "link add name br0 type bridge forward_delay 0\nlink set br0 up\n");
  }
  std::vector<Fd> tunnels;
  for (int machine = 0; machine < machines; ++machine) {
    machines_.push_back(new_network());
    if (link_ == Link::kSwitch) join_to_switch(machine);
    if (link_ == Link::kRelay) tunnels.push_back(open_tunnel(network(machine)));
    address_and_raise(machine);
  }
  if (link_ == Link::kRelay) relay_ = std::make_unique<PacketRelay>(std::move(tunnels));
}

NetworkLab::~NetworkLab() = default;

void NetworkLab::join_to_switch(int machine) {
  const std::string name = port(machine);
  configure(
      network(machine), "ip",
      fmt::format("link add name lab0 type veth peer name {} netns /proc/{}/fd/{}\n", name, ::getpid(), switch_.get()));
  configure(switch_.get(), "ip", fmt::format("link set {0} master br0\nlink set {0} up\n", name));
}

void NetworkLab::address_and_raise(int machine) const {
  std::string commands = fmt::format("link set lo up\naddress add {}/24 dev lab0\n", address(machine));
  if (has_ipv6()) commands += fmt::format("address add {}/64 dev lab0 nodad\n", address6(machine));
  configure(network(machine), "ip", commands + "link set lab0 up\n");
  if (has_ipv6()) inside(network(machine), [&] { wait_for_address6(address6(machine)); });
}

void NetworkLab::enter(int machine) const {
  if (::setns(network(machine), CLONE_NEWNET) != 0) fail("setns");
}

void NetworkLab::limit_rate(int machine, const std::string& rate) const {
  configure(network(machine), "tc", limit_of("lab0", rate));
  if (link_ == Link::kSwitch) configure(switch_.get(), "tc", limit_of(port(machine), rate));
}

void NetworkLab::cut(int machine) {
  if (link_ == Link::kRelay) return relay_->cut(machine, true);
  configure(switch_.get(), "ip", fmt::format("link set {} down\n", port(machine)));
}

void NetworkLab::mend(int machine) {
  if (link_ == Link::kRelay) return relay_->cut(machine, false);
  configure(switch_.get(), "ip", fmt::format("link set {} up\n", port(machine)));
}

void NetworkLab::shut_interface(int machine) const { configure(network(machine), "ip", "link set lab0 down\n"); }

void NetworkLab::take_route(int machine) const {
  configure(network(machine), "ip", "route flush dev lab0 scope link\n");
}

void NetworkLab::give_route(int machine) const {
  configure(network(machine), "ip",
            fmt::format("route add {}/32 dev lab0 src {}\n", address(1 - machine), address(machine)));
}

NetworkLab::Traffic NetworkLab::traffic(int machine) const {
  Traffic traffic;
  inside(network(machine), [&] {
    std::ifstream table("/proc/thread-self/net/dev");
    for (std::string line; std::getline(table, line);) {
      const std::size_t name = line.find("lab0:");
      if (name == std::string::npos) continue;
      unsigned long long received = 0, sent = 0;
      std::sscanf(line.c_str() + name + 5, "%llu %*u %*u %*u %*u %*u %*u %*u %llu", &received, &sent);
      traffic = {sent, received};
    }
  });
  return traffic;
}

}  // namespace lockstep::testing
