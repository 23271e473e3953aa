// The store: a small key-value service over TCP, through which the ranks find each other. lockrun hosts it; without
// lockrun, rank 0 does.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/endpoint.h"
#include "lockstep/core/error.h"

#pragma GCC visibility push(default)
namespace lockstep {

// A claim that was required while waiting for a key has been abandoned: its owner gave it up, or the owner's connection
// closed. The message is the claim's value.
class ClaimAbandoned : public Error {
 public:
  using Error::Error;
};

// A connection to the store, or a view of one with a key prefix. Thread-safe; the calls of one connection run one at a
// time. Keys have at most 512 bytes, values at most 8 MiB. Every call throws RendezvousError with the address if the
// store cannot be reached, and TimeoutError with the key if the timeout ends a wait.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  // Blocks until the key exists.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  // Adds `amount` to a counter (0 when new) and returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  // Sets the key if it is absent. Returns the value that the key has afterwards.
  virtual std::string set_if_absent(std::string_view key, std::string_view value) = 0;
  // Removes all keys that begin with `prefix`, which must not be empty.
  virtual void erase_below(std::string_view prefix) = 0;

  // -- presence of members. The defaults are for a store without connections, which cannot be lost.

  // Sets a key that belongs to this connection, unless another open connection owns it. Returns the value that the key
  // has afterwards.
  virtual std::string claim(std::string_view key, std::string_view value) { return set_if_absent(key, value); }
  // Makes the claim an ordinary key, which outlives the connection.
  virtual void keep([[maybe_unused]] std::string_view key) {}
  // Gives the claim up; its value becomes `reason`.
  virtual void abandon([[maybe_unused]] std::string_view key, [[maybe_unused]] std::string_view reason) {}
  // Blocks as get() does, but throws ClaimAbandoned as soon as a claim whose key begins with `claims` is abandoned
  // while `key` does not exist, or if `key` itself is an abandoned claim.
  virtual std::string get_while([[maybe_unused]] std::string_view claims, std::string_view key,
                                std::chrono::milliseconds timeout) {
    return get(key, timeout);
  }
  // Throws ClaimAbandoned for the first abandoned claim whose key begins with `claims`; `timeout` limits the wait for
  // the store's answer.
  virtual void check_claims([[maybe_unused]] std::string_view claims,
                            [[maybe_unused]] std::chrono::milliseconds timeout) {}
};

struct StoreServerOptions {
  std::string host = "127.0.0.1";  // interface to bind; other than loopback requires a token (or insecure)
  std::uint16_t port = 0;          // 0: a free one; see endpoint()
  int listen_fd = -1;  // >= 0: a bound and listening socket, which the server takes over; host and port are ignored
  std::string token;   // empty: no proof required; the host must then be loopback unless `insecure`
  bool insecure = false;
  std::map<std::string, std::string> values = {};  // keys that exist from the start
};

// Serves on its own thread until destroyed. It closes a connection that cannot prove the token or breaks the protocol;
// other connections go on.
class StoreServer {
 public:
  explicit StoreServer(const StoreServerOptions& options);
  ~StoreServer();
  Endpoint endpoint() const;
  static bool is_in_this_process();  // whether this process has a running server

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Connects, retrying until the timeout, and proves the token. Throws RendezvousError that says whether no store answers
// at that address or the token was refused.
std::shared_ptr<Store> connect_store(const Endpoint& endpoint, std::string_view token,
                                     std::chrono::milliseconds timeout);

// A view of the same store that adds `prefix` to every key.
std::shared_ptr<Store> scoped(std::shared_ptr<Store> store, std::string prefix);

}  // namespace lockstep
#pragma GCC visibility pop
