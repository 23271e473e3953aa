// A relay between the two ends of TCP connections: a thread that passes bytes on in pieces of the configured length,
// and stalls or cuts the connections after a number of bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/store.h"
#include "src/core/process/fd.h"

namespace lockstep::testing {

class StreamRelay {
 public:
  // Uses the network of the calling thread.
  StreamRelay();
  ~StreamRelay();  // cuts all connections
  StreamRelay(const StreamRelay&) = delete;
  StreamRelay& operator=(const StreamRelay&) = delete;

  // Returns an address on `host` whose connections are passed on to `target`.
  Endpoint front_of(const Endpoint& target, const std::string& host);

  void write_at_most(std::size_t bytes) { piece_.store(bytes); }
  // After that many more bytes, in both directions of all connections together, nothing passes and nothing closes.
  void stall_after(std::uint64_t bytes) { stall_at_.store(passed_.load() + bytes); }
  // The same, and then all connections are closed; later ones are refused.
  void cut_after(std::uint64_t bytes) { cut_at_.store(passed_.load() + bytes); }
  std::uint64_t passed() const { return passed_.load(); }
  int connections() const { return connected_.load(); }

 private:
  struct Direction {
    int from = -1, to = -1;
    std::vector<std::byte> held;  // read and not yet written
    bool ended = false;           // the end of the sender's data has been passed on
  };
  struct Connection {
    Fd near, far;
    Direction out, back;
  };
  struct Front {
    Fd listener;
    Endpoint target;
  };
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  void run();
  void accept_new();
  void connect(const Front& front);
  void pump(Direction& direction);
  void end(Direction& direction);
  std::size_t may_pass() const;
  void wait();

  std::atomic<std::size_t> piece_{std::size_t{1} << 16};
  std::atomic<std::uint64_t> stall_at_{kNever}, cut_at_{kNever}, passed_{0};
  std::atomic<int> connected_{0};
  std::atomic<bool> stop_{false};
  Fd wake_;
  std::mutex mutex_;
  std::list<Front> fronts_;            // guarded by mutex_
  std::list<Connection> connections_;  // for the thread only
  std::thread thread_;
};

// A rank's store in which the peers' addresses are those of a relay, so that its connections go through the relay.
class RelayedStore : public Store {
 public:
  RelayedStore(std::shared_ptr<Store> store, StreamRelay& relay, std::string host)
      : store_(std::move(store)), relay_(relay), host_(std::move(host)) {}

  void set(std::string_view key, std::string_view value) override { store_->set(key, value); }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override { return store_->add(key, amount); }
  std::string set_if_absent(std::string_view key, std::string_view value) override {
    return store_->set_if_absent(key, value);
  }
  void erase_below(std::string_view prefix) override { store_->erase_below(prefix); }

 private:
  std::shared_ptr<Store> store_;
  StreamRelay& relay_;
  std::string host_;
};

}  // namespace lockstep::testing
