// The store: a small key-value service over TCP, the only rendezvous. lockrun hosts it; without lockrun, rank 0 does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/endpoint.h"
#include "lockstep/core/error.h"

#pragma GCC visibility push(default)
namespace lockstep {

// A claim that must stand while a key is awaited is abandoned: its connection has ended, or its owner gave it up. The
// message is the claim's value.
class ClaimAbandoned : public Error {
 public:
  using Error::Error;
};

// A connection to the store, or a view of one with a key prefix. Thread-safe; calls of one connection take turns.
// Keys are at most 512 bytes, values at most 8 MiB. Every call throws RendezvousError that names the address when the
// store cannot be reached, and TimeoutError that names the key when the timeout ends a wait.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  // Blocks until the key exists.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  // Adds to a counter (0 when new) and returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  // Sets the key only when it is absent; returns the value that stands afterwards.
  virtual std::string set_if_absent(std::string_view key, std::string_view value) = 0;
  // Ends all keys that begin with `prefix`, which is not empty.
  virtual void erase_below(std::string_view prefix) = 0;

  // -- presence of the members. A store without connections, which cannot end, keeps to these defaults.

  // Sets a key that belongs to this connection, unless another one that is still there has it; returns the value that
  // stands afterwards.
  virtual std::string claim(std::string_view key, std::string_view value) { return set_if_absent(key, value); }
  // The claim is a key like others from now on.
  virtual void keep([[maybe_unused]] std::string_view key) {}
  // Gives the claim up, with the reason as its value.
  virtual void abandon([[maybe_unused]] std::string_view key, [[maybe_unused]] std::string_view reason) {}
  // Blocks as get() does, and throws ClaimAbandoned as soon as a claim below the prefix `claims` is abandoned and the
  // key does not exist, or is an abandoned claim itself.
  virtual std::string get_while([[maybe_unused]] std::string_view claims, std::string_view key,
                                std::chrono::milliseconds timeout) {
    return get(key, timeout);
  }
  // Throws ClaimAbandoned for the first one below the prefix; `timeout` is for the store's answer.
  virtual void check_claims([[maybe_unused]] std::string_view claims,
                            [[maybe_unused]] std::chrono::milliseconds timeout) {}
};

struct StoreServerOptions {
  std::string host = "127.0.0.1";  // interface to bind; off loopback needs a token (or insecure)
  std::uint16_t port = 0;          // 0: a free one, see endpoint()
  int listen_fd = -1;              // >= 0: an already bound and listening socket, taken over; host and port are ignored
  std::string token;               // empty: no proof asked for; then the host must be loopback unless insecure
  bool insecure = false;
};

// Serves until destroyed, on a thread of its own. Connections that cannot prove the token, or send what the protocol
// does not know, are closed without harm to others.
class StoreServer {
 public:
  explicit StoreServer(const StoreServerOptions& options);
  ~StoreServer();
  Endpoint endpoint() const;
  static bool is_in_this_process();  // one serves

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Connects, retrying until the timeout; proves the token. Throws RendezvousError: no store answers at that address, or
// the token is refused (it says which).
std::shared_ptr<Store> connect_store(const Endpoint& endpoint, std::string_view token,
                                     std::chrono::milliseconds timeout);

// The same store, every key prefixed.
std::shared_ptr<Store> scoped(std::shared_ptr<Store> store, std::string prefix);

}  // namespace lockstep
#pragma GCC visibility pop
