// The answers of the store's server: the keys, the claims, and the connections that wait for a key.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "src/comm/store/store_claims.h"
#include "src/comm/store/store_connection.h"
#include "src/comm/store/store_table.h"

namespace lockstep {

// For one thread. A reply stays in its connection until that is flushed.
class StoreAnswers {
 public:
  using Clock = std::chrono::steady_clock;
  // Implemented by the server, which moves the bytes.
  class Connections {
   public:
    virtual ~Connections() = default;
    virtual void set_deadline(StoreConnection& connection, Clock::time_point when) = 0;  // zero: none
    // Called when a connection that waited for a key has its reply, which must be sent. May close the connection.
    virtual void has_reply(StoreConnection& connection) = 0;
  };

  StoreAnswers(Connections& connections, const std::map<std::string, std::string>& values) : connections_(connections) {
    for (const auto& [key, value] : values) table_.set(key, value);
  }

  // Returns false for a request that this version does not know.
  bool answer(StoreConnection& connection, StoreConnection::Request& request);
  // Call it when a connection has waited for its key until its deadline.
  void time_out(StoreConnection& connection);
  // Call it when a connection is closed: ends its wait and abandons its claims.
  void forget(StoreConnection& connection);
  bool has_claim(const StoreConnection& connection) const { return claims_.has_any(&connection); }
  // Replies to the clients that wait for a key from a client that has gone.
  void notify_of_abandoned_claims();

 private:
  void answer_get(StoreConnection& connection, StoreConnection::Request& request);
  bool claimed(StoreConnection& connection, StoreConnection::Request& request);
  bool tell_if_abandoned(StoreConnection& connection, std::string_view claims);
  bool stored(StoreConnection& connection, const std::string& key, const StoreTable::Value& value, bool wants_it);
  void stop_waiting(StoreConnection& connection);

  Connections& connections_;
  StoreTable table_;
  StoreClaims claims_;
  bool claims_changed_ = false;
  std::unordered_map<std::string, std::set<StoreConnection*>> waiting_;  // by key
};

}  // namespace lockstep
