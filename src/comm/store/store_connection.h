// One client of the store's server: received bytes that are not processed yet, and replies that wait to be sent.
#pragma once

#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/store/store_protocol.h"
#include "src/comm/store/store_table.h"
#include "src/core/process/process_fd.h"

namespace lockstep {

// The memory for requests beyond a connection's own share: a client that announces a large request and sends it slowly,
// or a thousand of them, use no more than this in total. Connections without room are not read until others are done.
class InputBudget {
 public:
  explicit InputBudget(std::size_t bytes) : free_(bytes) {}
  bool take(std::size_t bytes) {
    if (bytes > free_) return false;
    free_ -= bytes;
    return true;
  }
  void give_back(std::size_t bytes) { free_ += bytes; }
  std::size_t free() const { return free_; }

 private:
  std::size_t free_;
};

class StoreConnection {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State {
    kOpen,    // may continue
    kStuck,   // is not read until the budget has room
    kClosed,  // to be closed
  };
  struct Request {
    store_protocol::RequestHeader header;
    std::string key, value;
  };

  StoreConnection(Fd fd, InputBudget& budget) : fd_(std::move(fd)), budget_(budget) {}
  ~StoreConnection() { drop_input(); }
  StoreConnection(const StoreConnection&) = delete;
  StoreConnection& operator=(const StoreConnection&) = delete;

  int fd() const { return fd_.get(); }

  // Before the proof: returns its bytes, once all have arrived.
  State receive_proof(std::optional<store_protocol::ClientProof>& proof);
  // After the proof: returns a request, once it is complete. Requests and replies alternate: a client that sends before
  // its reply is closed.
  State receive(std::optional<Request>& request);
  bool is_in_a_request() const { return !in_.empty(); }
  void drop_input();

  template <typename T> void append(const T& message) {
    out_.append(reinterpret_cast<const char*>(&message), sizeof message);
  }
  void reply(store_protocol::Reply kind, StoreTable::Value value);
  State flush();
  bool wants_to_send() const { return sent_ < out_.size() + (value_ ? value_->size() : 0); }

  // The server's state.
  bool proved = false;
  bool close_when_sent = false;
  bool stuck = false;
  bool closed = false;
  bool machine_is_watched = false;
  std::optional<ProofExchange> exchange;
  std::string awaited;                         // the key for which a get() waits; empty: none
  std::string claims;                          // prefix of the claims that must stand meanwhile; empty: none
  Clock::time_point deadline{};                // zero: none
  std::uint32_t events = 0;                    // that epoll watches
  std::list<StoreConnection>::iterator place;  // of this connection

 private:
  State receive_some(std::size_t limit);
  State make_room(const store_protocol::RequestHeader& header, std::size_t& wanted);

  ProcessFd fd_;
  InputBudget& budget_;
  std::vector<std::byte> in_;
  std::size_t budgeted_ = 0;
  std::string out_;
  StoreTable::Value value_;  // sent after out_
  std::size_t sent_ = 0;     // of both
};

}  // namespace lockstep
