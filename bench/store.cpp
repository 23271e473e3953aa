// Tests the store under load: many clients in one process, each with its own authenticated connection, which set, get
// and add in turn. Reports the time of each request, the requests per second of the server, and its memory.
//
//   build/bench/store --clients 1000
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <cxxopts.hpp>
#include <deque>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "bench/lib/bench_common.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "src/comm/store/store_protocol.h"

namespace lockstep::bench {

namespace {

namespace protocol = store_protocol;
using Clock = std::chrono::steady_clock;

constexpr const char* kToken = "bench";
constexpr auto kPatience = std::chrono::seconds(60);
constexpr std::array<std::pair<protocol::Request, const char*>, 3> kOperations = {
    {{protocol::Request::kSet, "set"}, {protocol::Request::kGet, "get"}, {protocol::Request::kAdd, "add"}}};

struct Settings {
  std::size_t clients = 1000;
  std::size_t active = 0;  // clients with a running request at any time; 0: all
  std::size_t value_bytes = 64;
  double seconds = 5;
  bool json = false;
};

struct Client {
  Fd fd;
  std::size_t turn = 0;  // of kOperations
  Clock::time_point asked{};
  std::string answer;
};

struct Results {
  std::array<std::vector<double>, 3> micros;  // by operation
  double seconds = 0;
  double server_mib_before = 0, server_mib = 0;
};

cxxopts::Options describe_flags() {
  cxxopts::Options options("store", "The store under load: many clients, set, get and add in turn.\n");
  cxxopts::OptionAdder add = options.add_options();
  add("clients", "connections", cxxopts::value<std::size_t>()->default_value("1000"));
  add("active", "concurrent requests; 0: one per client", cxxopts::value<std::size_t>()->default_value("0"));
  add("value-bytes", "size of each value: 64, 4K", cxxopts::value<std::string>()->default_value("64"));
  add("seconds", "to measure", cxxopts::value<double>()->default_value("5"));
  add("json", "JSON lines");
  add("h,help", "this text");
  return options;
}

// nullopt: --help was given.
std::optional<Settings> parse(int argc, char** argv) {
  cxxopts::Options options = describe_flags();
  Settings settings;
  try {
    const cxxopts::ParseResult flags = lockstep::examples::parse_naming_flags(options, argc, argv);
    if (flags.count("help") != 0) {
      fmt::print("{}", options.help());
      return std::nullopt;
    }
    if (!flags.unmatched().empty())
      throw InvalidArgument("unknown argument '{}'; see --help", flags.unmatched().front());
    settings.clients = flags["clients"].as<std::size_t>();
    settings.active = flags["active"].as<std::size_t>();
    settings.value_bytes = parse_bytes("--value-bytes", flags["value-bytes"].as<std::string>());
    settings.seconds = flags["seconds"].as<double>();
    settings.json = flags.count("json") != 0;
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception& error) {  // cxxopts names its base class differently by version
    throw InvalidArgument("{}", error.what());
  }
  if (settings.clients == 0 || !(settings.seconds > 0) || settings.value_bytes > protocol::kMaxValueBytes)
    throw InvalidArgument("--clients must be at least 1, --seconds above 0, --value-bytes at most 8M");
  if (settings.active == 0 || settings.active > settings.clients) settings.active = settings.clients;
  return settings;
}

void allow_descriptors(std::size_t count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= count) return;
  limit.rlim_cur = count;
  limit.rlim_max = std::max(limit.rlim_max, limit.rlim_cur);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) throw Error("{} descriptors are needed: raise 'ulimit -Hn'", count);
}

// Runs in a separate process, so that its memory is only the server's. Ends with this one.
pid_t host_server(Endpoint& endpoint) {
  int ends[2];
  if (pipe(ends) != 0) throw Error("pipe: {}", std::strerror(errno));
  const Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) throw Error("fork: {}", std::strerror(errno));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const StoreServer server({.token = kToken});
    const std::uint16_t port = server.endpoint().port;
    if (write(write_end.get(), &port, sizeof port) != sizeof port) _exit(1);
    for (;;) pause();
  }
  endpoint.host = "127.0.0.1";
  if (read(read_end.get(), &endpoint.port, sizeof endpoint.port) != sizeof endpoint.port)
    throw Error("the server did not start");
  return pid;
}

double resident_mib(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  throw Error("/proc/{}/status has no VmRSS", pid);
}

Fd connect_client(const Endpoint& endpoint) {
  const Deadline deadline = Clock::now() + kPatience;
  std::string why;
  Fd fd = try_connect_tcp(endpoint.host, endpoint.port, deadline, why);
  if (!fd) throw Error("cannot connect to the store: {}", why);
  const auto must = [](IoResult result) {
    if (result != IoResult::kDone) throw Error("the store closed a connection in its handshake");
  };
  protocol::Hello hello;
  must(receive_all(fd.get(), std::as_writable_bytes(std::span(&hello, 1)), deadline));
  protocol::ClientProof client{protocol::kMagic, make_nonce(), {}};
  client.proof = prove(kToken, Role::kStoreClient, client.client_nonce, hello.server_nonce);
  must(send_all(fd.get(), std::as_bytes(std::span(&client, 1)), deadline));
  protocol::ServerProof proof;
  must(receive_all(fd.get(), std::as_writable_bytes(std::span(&proof, 1)), deadline));
  if (proof.accepted != 1) throw Error("the store refused the token");
  return fd;
}

void ask(Client& client, std::size_t number, const Settings& settings) {
  const auto operation = kOperations[client.turn].first;
  const bool is_add = operation == protocol::Request::kAdd;
  const std::string key = is_add ? "counter" : fmt::format("client/{}", number);
  const std::int64_t one = 1;
  const std::string value = is_add ? std::string(reinterpret_cast<const char*>(&one), sizeof one)
                                   : std::string(operation == protocol::Request::kSet ? settings.value_bytes : 0, 'x');
  const protocol::RequestHeader header{operation, static_cast<std::uint32_t>(key.size()),
                                       static_cast<std::uint32_t>(value.size()), 60'000};
  const std::string message = std::string(reinterpret_cast<const char*>(&header), sizeof header) + key + value;
  client.answer.clear();
  client.asked = Clock::now();
  if (send_all(client.fd.get(), std::as_bytes(std::span(message)), client.asked + kPatience) != IoResult::kDone)
    throw Error("the store closed a connection");
}

// Returns true when the entire answer has arrived.
bool receive_answer(Client& client) {
  char bytes[65536];
  const ssize_t got = recv(client.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) throw Error("the store closed a connection");
  client.answer.append(bytes, static_cast<std::size_t>(got));
  protocol::ReplyHeader header;
  if (client.answer.size() < sizeof header) return false;
  std::memcpy(&header, client.answer.data(), sizeof header);
  if (header.reply != protocol::Reply::kOk)
    throw Error("the store refused a request: {}", client.answer.substr(sizeof header));
  return client.answer.size() == sizeof header + header.value_bytes;
}

// As soon as one request is answered, the client that was idle for longest sends the next.
Results drive(std::vector<Client>& clients, const Settings& settings, pid_t server) {
  Results results;
  results.server_mib_before = resident_mib(server);
  const Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t i = 0; i < clients.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, clients[i].fd.get(), &event) != 0)
      throw Error("epoll: {}", std::strerror(errno));
  }
  std::deque<std::size_t> idle(clients.size());
  std::iota(idle.begin(), idle.end(), std::size_t{0});
  const auto send_next = [&] {
    ask(clients[idle.front()], idle.front(), settings);
    idle.pop_front();
  };
  const auto start = Clock::now(),
             end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings.seconds));
  for (std::size_t i = 0; i < settings.active; ++i) send_next();
  while (idle.size() < clients.size()) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll.get(), events.data(), events.size(), 60'000);
    if (count == 0) throw Error("the store did not answer for a minute");
    for (int i = 0; i < count; ++i) {
      const auto number = static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.u64);
      Client& client = clients[number];
      if (!receive_answer(client)) continue;
      const auto now = Clock::now();
      results.micros[client.turn].push_back(std::chrono::duration<double, std::micro>(now - client.asked).count());
      client.turn = (client.turn + 1) % kOperations.size();
      idle.push_back(number);
      if (now < end) send_next();
    }
  }
  results.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  results.server_mib = resident_mib(server);
  return results;
}

void report(const Results& results, const Settings& settings) {
  Report table(settings.json);
  for (std::size_t at = 0; at < kOperations.size(); ++at) {
    const std::vector<double>& micros = results.micros[at];
    if (micros.empty()) throw Error("no {} was measured: use more --seconds", kOperations[at].second);
    table.row({{"operation", kOperations[at].second},
               {"clients", settings.clients},
               {"active", settings.active},
               {"value_bytes", settings.value_bytes},
               {"requests", micros.size()},
               {"per_second", rounded(static_cast<double>(micros.size()) / results.seconds, 0)},
               {"p50_us", rounded(quantile(micros, 0.5), 1)},
               {"p99_us", rounded(quantile(micros, 0.99), 1)},
               {"max_us", rounded(quantile(micros, 1), 1)},
               {"server_mib_idle", rounded(results.server_mib_before, 1)},
               {"server_mib", rounded(results.server_mib, 1)}});
  }
}

int run(int argc, char** argv) {
  const auto given = parse(argc, argv);
  if (!given) return 0;
  const Settings& settings = *given;
  allow_descriptors(settings.clients + 100);
  Endpoint endpoint;
  const pid_t server = host_server(endpoint);
  std::vector<Client> clients(settings.clients);
  for (Client& client : clients) client.fd = connect_client(endpoint);
  report(drive(clients, settings, server), settings);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  return 0;
}

}  // namespace

}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::run_main("store", lockstep::bench::run, argc, argv); }
