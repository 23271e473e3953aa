// Collectives of ranks on several machines, some of which share memory: shared memory within a node, TCP between nodes.
//
// Every call begins with a round of the node's ranks (rounds.h), in which they compare their calls and publish the
// locations of their data. Ranks of different nodes compare the headers in front of the data that they send. Rails,
// blocks, chunks and turns are defined in ring_plan.h.
//   all_reduce      A rail sums its chunk of all local ranks' buffers, sends and receives, and stores the results into
//                   all local buffers as they arrive; then one more round. Unless all of the node's buffers are
//                   registered memory, its ranks copy theirs through windows of shared memory, one round for each turn.
//                   2 (K-1)/K bytes leave a node for each byte of the message. A message of up to 8 KiB takes one
//                   exchange: rail 0 sends the node's sum to all other nodes, K-1 bytes for each byte.
//   broadcast       The root's node sends the root's data; every other node passes on what it receives, and copies it
//                   to its ranks. One message leaves each node but the last.
//   reduce          The reverse of a broadcast, with sums in place of copies.
//   all_gather      A broadcast of every rank's part, if the parts have at least 64 KiB.
//   reduce_scatter  A reduce of every rank's part, if the parts have at least 64 KiB.
//   barrier         A round, one exchange of rail 0, a round.
//   The others use the connections between all ranks (tcp_transport.h), after rail 0 of every node has compared the
//   calls.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/place.h"
#include "src/comm/call/collectives.h"
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

class HierTransport : public Transport, private Collectives {
 public:
  struct Connections {
    std::vector<TcpPeer> rail;           // by node, for this rank's rail; empty: it is on no rail
    std::unique_ptr<TcpTransport> mesh;  // between all ranks
    FailureDetector* detector;           // owned by the mesh; also watches this node's ranks
  };
  // The rendezvous' provider must not be null.
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
  // The collectives work on operation_, which is the argument with a deadline of its own.
  void barrier(const Operation&) override;
  void broadcast(const Operation&) override;
  void all_reduce(const Operation&) override;
  void reduce_to_root(const Operation&) override;
  void all_gather(const Operation&) override;
  void reduce_scatter(const Operation&) override;
  void gather(const Operation&) override { over_the_mesh(); }
  void scatter(const Operation&) override { over_the_mesh(); }
  void all_to_all(const Operation&) override { over_the_mesh(); }
  void all_gather_v(const Operation&) override { over_the_mesh(); }
  void all_to_all_v(const Operation&) override { over_the_mesh(); }

  void compare_between_nodes();
  void all_reduce_small();
  void broadcast_small();
  void broadcast_large(int root, std::byte* data);
  void reduce_small();
  void reduce_large(int root, std::byte* data);
  void over_the_mesh();
  void sum_of_node(std::uint64_t round, std::byte* out);
  std::byte* small_sum(int node);

  // The data that travels around the nodes, and this rank's part in it.
  struct Cargo {
    std::byte* data;  // ranges that are neither sent nor received are left unchanged
    bool gives;       // this rank's values are added to the sum, or are sent
    bool gets;        // this rank receives the result
    // Local rank of the only rank of this node that has the values at first, or gets the result; -1: all ranks.
    int root = -1;
    bool from_root = false;  // this node has the result at first, in the root's memory
  };
  void carry(const Cargo& cargo, const RingPlan& plan);
  void carry_in_place(const Cargo& cargo, const RingPlan& plan);
  void carry_through_windows(const Cargo& cargo, const RingPlan& plan);
  RingPlan plan_of(RingPlan::Journey journey, int root = 0) const;

  // The ranks of this node are identified by local rank.
  int local_rank() const { return node_.local_rank(); }
  int my_node() const { return layout_.node_of(place_.rank); }
  bool is_on_a_rail() const { return rail_.has_value(); }
  bool leads() const { return local_rank() == 0; }
  int root_node() const { return layout_.node_of(operation_.signature.root); }
  // The root's local rank if it is on this node, else -1.
  int local_root(int root) const { return layout_.node_of(root) == my_node() ? layout_.local_rank_of(root) : -1; }
  bool is_root() const { return operation_.signature.root == place_.rank; }
  void begin_rail();
  void run_rail();
  std::chrono::steady_clock::time_point rail_deadline()
      const;  // extended by the time for which this process was stopped
  void wait_longer();
  void say_goodbye() noexcept;
  void hang_up() noexcept;

  Place place_;
  NodeLayout layout_;
  ReduceOrder order_;
  std::unique_ptr<SharedMemoryProvider> provider_;  // outlives the failure detector, as the next member
  std::shared_ptr<SharedSegment> control_;
  std::unique_ptr<TcpTransport> mesh_;
  FailureDetector& detector_;
  NodeBuffers node_;
  std::vector<TcpPeer> rail_peers_;
  CallEnds ends_;
  std::optional<TcpExchange> rail_;      // none: this rank is on no rail
  std::optional<RingRun> ring_;          // as rail_
  Operation operation_;                  // the one under way
  std::chrono::milliseconds timeout_{};  // of operation_
  std::vector<const std::byte*> in_;
  std::vector<std::byte> small_;  // by node: sums of a small message
  std::atomic<std::uint64_t> rail_bytes_sent_{0}, bytes_read_{0};
  std::mutex busy_;  // held while an operation uses the sockets
  bool left_ = false;
  bool said_goodbye_ = false;
};

// Collective. For a group on several nodes, at least one of which has several ranks.
std::unique_ptr<Transport> make_hier_transport(const BackendContext& context, NodeRendezvous rendezvous,
                                               ReduceOrder order);

}  // namespace lockstep::host
