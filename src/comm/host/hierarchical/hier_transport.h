// Collectives of ranks on several machines, some of which share memory: shared memory inside a node, TCP between nodes.
//
// Every call begins with a round of the node's ranks (rounds.h), in which they compare their calls and say where their
// data lies; ranks of unlike nodes compare theirs by the headers in front of what they send. Rails, blocks, chunks,
// turns: see ring_plan.h.
//   all_reduce  a rail sums its chunk of all local ranks' buffers, sends and receives, and stores the results into all
//   local
//               buffers as they come; then one more round. If not all of the node's buffers are registered memory, its
//               ranks copy theirs through windows of shared memory, a round a turn. 2 (K-1)/K bytes leave a node for
//               each byte of the message. Up to 8 KiB in one exchange: rail 0 sends the node's sum to all other nodes,
//               K-1 bytes a byte.
//   broadcast   the root's node sends what its root has, every other node passes on what it gets and copies it to its
//   ranks; reduce      the other way round, sums instead of copies. One message leaves each node but the last.
//   all_gather  a broadcast of every rank's part;  reduce_scatter  a reduce of every rank's part; parts of 64 KiB at
//   least. barrier     a round, one exchange of rail 0, a round. the others  over the connections between all ranks
//   (tcp_transport.h), after rail 0 of every node has compared the calls.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/place.h"
#include "src/comm/call/transport.h"
#include "src/comm/host/hierarchical/ring_run.h"
#include "src/comm/host/liveness/call_ends.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/machine/node_rendezvous.h"
#include "src/comm/host/reduce/ring_plan.h"
#include "src/comm/host/shm/node_buffers.h"
#include "src/comm/host/tcp/tcp_transport.h"
#include "src/comm/host/wire/tcp_exchange.h"

namespace lockstep::host {

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

class HierTransport : public Transport {
 public:
  struct Connections {
    std::vector<TcpPeer> rail;           // by node, this rank's rail; empty: it is on none
    std::unique_ptr<TcpTransport> mesh;  // between all ranks
    FailureDetector* detector;           // the mesh's, which watches this node's ranks as well
  };
  // The rendezvous' provider is not null.
  HierTransport(const Place& place, NodeRendezvous rendezvous, Connections connections, ReduceOrder order);
  ~HierTransport() override;

  std::string_view name() const override { return "hierarchical"; }
  void execute(const Operation& operation) override;
  void compare(const Operation& operation) override;
  Buffer allocate(const Operation& operation) override;
  ByteChannels& channels() override { return mesh_->channels(); }
  void abort(const std::string& reason) override { mesh_->abort(reason); }
  void leave() noexcept override;
  void on_over(std::function<void(const std::string&)> call) override { mesh_->on_over(std::move(call)); }
  TransportCounters counters() const override;

 private:
  void begin(const Operation& operation);
  void dispatch();
  void barrier();
  void compare_between_nodes();
  void all_reduce();
  void all_reduce_small();
  void broadcast();
  void broadcast_small();
  void broadcast_large(int root, std::byte* data);
  void reduce_to_root();
  void reduce_small();
  void reduce_large(int root, std::byte* data);
  void all_gather();
  void reduce_scatter();
  void over_the_mesh();
  void sum_of_node(std::uint64_t round, std::byte* out);
  std::byte* small_sum(int node);

  // The data that travels around the nodes, and this rank's part in it.
  struct Cargo {
    std::byte* data;         // what is not given or got is left as it is
    bool gives;              // this rank's values go into the sum, or are what is sent
    bool gets;               // the result
    int root = -1;           // local rank of the only one of this node that has the values at first, or gets the result
    bool from_root = false;  // this node has the result at first, in the root's memory
  };
  void carry(const Cargo& cargo, const RingPlan& plan);
  void carry_in_place(const Cargo& cargo, const RingPlan& plan);
  void carry_through_windows(const Cargo& cargo, const RingPlan& plan);
  RingPlan plan_of(RingPlan::Journey journey, int root = 0) const;

  // The ranks of this node are counted by local rank.
  int local_rank() const { return node_.local_rank(); }
  int my_node() const { return layout_.node_of(place_.rank); }
  bool is_on_a_rail() const { return rail_.has_value(); }
  bool leads() const { return local_rank() == 0; }
  int root_node() const { return layout_.node_of(operation_.signature.root); }
  // The root's local rank if it is of this node, else -1.
  int local_root(int root) const { return layout_.node_of(root) == my_node() ? layout_.local_rank_of(root) : -1; }
  bool is_root() const { return operation_.signature.root == place_.rank; }
  void begin_rail();
  void run_rail();
  std::chrono::steady_clock::time_point rail_deadline() const;  // later after a time away
  void wait_longer();
  void say_goodbye() noexcept;
  void hang_up() noexcept;

  Place place_;
  NodeLayout layout_;
  ReduceOrder order_;
  std::unique_ptr<SharedMemoryProvider> provider_;  // outlives the failure detector, as the next
  std::shared_ptr<SharedSegment> control_;
  std::unique_ptr<TcpTransport> mesh_;
  FailureDetector& detector_;
  NodeBuffers node_;
  std::vector<TcpPeer> rail_peers_;
  CallEnds ends_;
  std::optional<TcpExchange> rail_;      // none: this rank is on no rail
  std::optional<RingRun> ring_;          // the same
  Operation operation_;                  // under way
  std::chrono::milliseconds timeout_{};  // of it
  std::vector<const std::byte*> in_;
  std::vector<std::byte> small_;  // by node: sums of a small message
  std::atomic<std::uint64_t> rail_bytes_sent_{0}, bytes_read_{0};
  std::mutex busy_;  // held while an operation uses the sockets
  bool left_ = false;
  bool said_goodbye_ = false;
};

// Collective. For a group in several nodes, of which one at least has several ranks.
std::unique_ptr<Transport> make_hier_transport(const BackendContext& context, NodeRendezvous rendezvous,
                                               ReduceOrder order);

}  // namespace lockstep::host
