// Collectives over TCP: a connection to every peer, with each call's signature in front of its data.
//
//   all_reduce      Block by block (tcp_reduce.cpp): every rank sends its values to each slice's owner, which adds them
//                   in rank order and sends the result to all. A block's values travel together with the results of the
//                   previous block. 2 (n-1)/n bytes leave a rank for each byte of the message. Small messages go to
//                   every rank in full: n-1 bytes for each byte, one exchange.
//   reduce          The same; results go to the root only.
//   reduce_scatter  The same; the owners keep the results.
//   broadcast, scatter: the root sends to all. gather: all send to the root. all_gather, all_to_all: every rank sends
//   to every other.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/core/place.h"
#include "src/comm/call/collectives.h"
#include "src/comm/call/transport.h"
#include "src/comm/host/liveness/call_ends.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/tcp/tcp_channels.h"
#include "src/comm/host/wire/tcp_exchange.h"
#include "src/comm/host/wire/tcp_mesh.h"

namespace lockstep::host {

class TcpTransport : public Transport, private Collectives {
 public:
  // Takes the connections to every peer: for collectives, for messages, and for the failure detector.
  TcpTransport(const Place& place, std::vector<TcpPeer> peers, std::vector<TcpPeer> message_peers,
               std::unique_ptr<FailureDetector> detector, ReduceOrder order);
  ~TcpTransport() override;

  std::string_view name() const override { return "tcp"; }
  void execute(const Operation& operation) override;
  void compare(const Operation& operation) override;
  Buffer allocate(const Operation& operation) override;
  ByteChannels& channels() override { return channels_; }
  void abort(const std::string& reason) override;
  void leave() noexcept override;
  void on_over(std::function<void(const std::string&)> call) override {
    detector_->on_over([this, call = std::move(call)] { call(detector_->group_error().text); });
  }
  TransportCounters counters() const override {
    return {0, bytes_sent_.load(std::memory_order_relaxed) + channels_.bytes_sent()};
  }

 private:
  void barrier(const Operation&) override { run_exchange(); }
  void all_reduce(const Operation& operation) override;
  void all_reduce_small(const Operation& operation);
  void plan_results(const Operation& operation, std::size_t block);
  void plan_values(const Operation& operation, std::size_t block);
  void reduce_block(const Operation& operation, std::size_t block);
  void reduce_to_root(const Operation& operation) override;
  void reduce_scatter(const Operation& operation) override;
  void broadcast(const Operation& operation) override;
  void all_gather(const Operation& operation) override;
  void gather(const Operation& operation) override;
  void scatter(const Operation& operation) override;
  void all_to_all(const Operation& operation) override;
  void all_gather_v(const Operation& operation) override;
  void all_to_all_v(const Operation& operation) override;

  void begin(const Operation& operation);
  void run_exchange();
  void hang_up() noexcept;
  void say_goodbye() noexcept;
  std::byte* staging(int rank, std::size_t bytes_each);
  int ranks() const { return place_.world_size; }

  Place place_;
  ReduceOrder order_;
  std::vector<TcpPeer> peers_;
  std::unique_ptr<FailureDetector> detector_;
  TcpChannels channels_;
  CallEnds ends_;
  TcpExchange exchange_;
  const Operation* operation_ = nullptr;
  std::vector<std::byte> staging_;  // what peers sent for this rank's slice
  std::vector<std::byte> scratch_;  // sums on their way to the root; the source of an all_to_all in place
  std::vector<const std::byte*> in_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::mutex busy_;  // held while an operation uses the sockets
  bool left_ = false;
  bool said_goodbye_ = false;
};

// Collective: connects the failure detectors of all ranks; with a `machine`, also of those that share memory with this
// rank.
std::unique_ptr<FailureDetector> make_failure_detector(const BackendContext& context, const MachinePeers* machine);

// Collective; see connect_mesh().
std::unique_ptr<Transport> make_tcp_transport(const BackendContext& context, ReduceOrder order);

}  // namespace lockstep::host
