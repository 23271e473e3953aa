#include "src/comm/host/hierarchical/hier_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/comm/host/machine/thread_memory_provider.h"

namespace lockstep::host {

namespace {

// The difference between the deadlines of ranks that wait for each other; see wait_longer().
constexpr auto kMargin = std::chrono::milliseconds(250);

std::vector<int> ranks_of_rail(const NodeLayout& layout, int rail) {
  std::vector<int> ranks;
  for (int node = 0; node < layout.nodes() && rail < layout.rails(); ++node)
    ranks.push_back(layout.members(node)[static_cast<std::size_t>(rail)]);
  return ranks;
}

}  // namespace

HierTransport::HierTransport(const Place& place, NodeRendezvous rendezvous, Connections connections, ReduceOrder order)
    : place_(place),
      layout_(std::move(rendezvous.layout)),
      order_(order),
      provider_(std::move(rendezvous.provider)),
      control_(std::move(rendezvous.control)),
      mesh_(std::move(connections.mesh)),
      detector_(*connections.detector),
      node_(*provider_, control_, layout_.local_rank_of(place.rank), layout_.size_of_node(layout_.node_of(place.rank)),
            detector_),
      rail_peers_(std::move(connections.rail)),
      ends_(detector_, ranks_of_rail(layout_, local_rank())),
      in_(static_cast<std::size_t>(std::max(node_.ranks(), layout_.nodes()))) {
  if (!rail_peers_.empty()) {
    rail_.emplace(my_node(), rail_peers_, ends_.events());
    ring_.emplace(RingRun::Node{my_node(), node_.ranks(), local_rank(), place.world_size, order}, *rail_);
  }
  detector_.on_over([this] { hang_up(); });
}

HierTransport::~HierTransport() {
  say_goodbye();
  detector_.stop();  // or it would close connections that are being destroyed
}

void HierTransport::hang_up() noexcept { shut_down(rail_peers_); }

// See TcpTransport::leave().
void HierTransport::leave() noexcept {
  if (!busy_.try_lock()) return;
  left_ = true;
  say_goodbye();
  busy_.unlock();
}

void HierTransport::say_goodbye() noexcept {
  if (std::exchange(said_goodbye_, true)) return;
  mesh_->leave();  // first: informs the failure detector before any connection ends
  send_goodbye(rail_peers_);
  provider_->close();
}

TransportCounters HierTransport::counters() const {
  const std::uint64_t read = bytes_read_.load(std::memory_order_relaxed) + (ring_ ? ring_->bytes_read() : 0);
  return {read, mesh_->counters().tcp_bytes + rail_bytes_sent_.load(std::memory_order_relaxed)};
}

void HierTransport::begin(const Operation& operation) {
  operation_ = operation;
  ends_.begin(operation_);
  timeout_ = operation.timeout;
  node_.rounds().begin(operation_);
  if (left_) throw PeerLost("{}: this rank has left the group", describe(operation.signature, operation.purpose));
  detector_.begins(operation_);
}

// A rank that waits for another node waits longer than the ranks of a node wait for each other, and one that waits for
// such a rank still longer. So the timeout names the rank that is late, not one that waits for it.
void HierTransport::wait_longer() { operation_.timeout = timeout_ + 2 * kMargin; }

std::chrono::steady_clock::time_point HierTransport::rail_deadline() const {
  return ends_.started() + timeout_ + kMargin;
}

void HierTransport::begin_rail() { rail_->begin(header_of(operation_)); }

void HierTransport::run_rail() {
  rail_->run(rail_deadline());
  rail_bytes_sent_.store(rail_->payload_bytes_sent(), std::memory_order_relaxed);
}

void HierTransport::execute(const Operation& operation) {
  const std::lock_guard lock(busy_);
  begin(operation);
  run_collective(operation_, "host");
  detector_.finished();
}

void HierTransport::compare(const Operation& operation) {
  const std::lock_guard lock(busy_);
  begin(operation);
  barrier(operation_);
  detector_.finished();
}

void HierTransport::over_the_mesh() {
  compare_between_nodes();
  wait_longer();
  mesh_->execute(operation_);
}

// If the ranks of a node agree, any of them can compare for the node. The others go on; if the nodes disagree, the
// failure detector reports it to them.
void HierTransport::compare_between_nodes() {
  node_.rounds().barrier();
  if (!leads()) return;
  begin_rail();
  run_rail();
}

void HierTransport::barrier(const Operation&) {
  compare_between_nodes();
  wait_longer();
  node_.rounds().barrier();
}

// Calls ShmTransport::allocate() on every node; then rail 0 reports the outcome to the other nodes.
Buffer HierTransport::allocate(const Operation& operation) {
  const std::lock_guard lock(busy_);
  begin(operation);
  compare_between_nodes();
  wait_longer();
  node_.rounds().barrier();
  const std::size_t bytes = operation.signature.count;
  std::string failure;
  auto segment = node_.share(RegisteredMemory::stride_of(bytes), operation.timeout, failure);
  std::vector<std::byte> failed(static_cast<std::size_t>(layout_.nodes()), std::byte{0});
  if (leads()) {
    auto& own = failed[static_cast<std::size_t>(my_node())];
    own = std::byte{segment ? std::uint8_t{0} : std::uint8_t{1}};
    for (int node = 0; node < layout_.nodes(); ++node) {
      if (node == my_node()) continue;
      rail_->send(node, &own, 1);
      rail_->receive(node, &failed[static_cast<std::size_t>(node)], 1);
    }
    run_rail();
  }
  const bool failed_somewhere =
      std::count(failed.begin(), failed.end(), std::byte{0}) != static_cast<std::ptrdiff_t>(failed.size());
  node_.rounds().payload()[0] = std::byte{failed_somewhere ? std::uint8_t{1} : std::uint8_t{0}};
  node_.rounds().publish();
  const bool told = !leads() && node_.rounds().await(0).payload[0] != std::byte{0};
  node_.rounds().await_all();
  if (failure.empty() && (failed_somewhere || told))
    failure = "shared memory could not be mapped on another node; see its ranks' message";
  detector_.finished();
  if (!failure.empty()) throw Error("{}: {}", node_.rounds().doing(), failure);
  return node_.add(std::move(segment), bytes);
}

std::unique_ptr<Transport> make_hier_transport(const BackendContext& context, NodeRendezvous rendezvous,
                                               ReduceOrder order) {
  const int rank = context.place.rank;
  const auto& layout = rendezvous.layout;
  const int node = layout.node_of(rank), local_rank = layout.local_rank_of(rank);
  if (!rendezvous.provider) {  // the only rank of its node
    rendezvous.provider = std::make_unique<PrivateMemoryProvider>();
    rendezvous.control = rendezvous.provider->share(ControlLayout::bytes(1), context.timeout);
  }
  HierTransport::Connections connections;
  auto peers = connect_mesh(context, "tcp", wanted_sockets_per_peer(context.place.world_size));
  auto message_peers = connect_mesh(context, "tcp-messages");
  const MachinePeers machine{ControlLayout(rendezvous.control->data(), layout.size_of_node(node)),
                             rendezvous.provider.get(), local_rank, layout.members(node)};
  auto detector = make_failure_detector(context, &machine);
  connections.detector = detector.get();
  if (local_rank < layout.rails()) {
    BackendContext of_rail = context;
    of_rail.place.rank = node;
    of_rail.place.world_size = layout.nodes();
    try {
      connections.rail =
          connect_mesh(of_rail, fmt::format("rail{}", local_rank), wanted_sockets_per_peer(layout.nodes()));
    } catch (const RendezvousError& error) {
      throw RendezvousError("rank {}, as node {} of {} ({}): {}", rank, node, layout.nodes(), layout.describe(),
                            error.what());
    }
  }
  connections.mesh = std::make_unique<TcpTransport>(context.place, std::move(peers), std::move(message_peers),
                                                    std::move(detector), order);
  return std::make_unique<HierTransport>(context.place, std::move(rendezvous), std::move(connections), order);
}

}  // namespace lockstep::host
