#include "src/comm/store/store_answers.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep {

namespace protocol = store_protocol;

bool StoreAnswers::answer(StoreConnection& connection, StoreConnection::Request& request) {
  using protocol::Reply;
  switch (request.header.request) {
    case protocol::Request::kSet:
      return stored(connection, request.key, table_.set(request.key, std::move(request.value)), false);
    case protocol::Request::kSetIfAbsent:
      return stored(connection, request.key, table_.set_if_absent(request.key, std::move(request.value)), true);
    case protocol::Request::kAdd: {
      const auto sum = table_.add(request.key, request.value);
      if (sum) return stored(connection, request.key, *sum, true);
      connection.reply(Reply::kRefused, std::make_shared<const std::string>("the key's value is not a counter"));
      return true;
    }
    case protocol::Request::kGet:
      if (request.value.size() > protocol::kMaxKeyBytes) return false;
      answer_get(connection, request);
      return true;
    case protocol::Request::kEraseBelow:
      table_.erase_below(request.key);
      claims_.erase_below(request.key);
      connection.reply(Reply::kOk, nullptr);
      return true;
    case protocol::Request::kClaim: return claimed(connection, request);
    case protocol::Request::kKeep:
      claims_.erase(request.key);
      connection.reply(Reply::kOk, nullptr);
      return true;
    case protocol::Request::kAbandon:
      if (!claims_.abandon(request.key, &connection)) {
        connection.reply(Reply::kRefused,
                         std::make_shared<const std::string>("the key is not a claim of this connection"));
        return true;
      }
      claims_changed_ = true;
      return stored(connection, request.key, table_.set(request.key, std::move(request.value)), false);
    case protocol::Request::kCheckClaims:
      if (!tell_if_abandoned(connection, request.key)) connection.reply(Reply::kOk, nullptr);
      return true;
  }
  return false;
}

void StoreAnswers::answer_get(StoreConnection& connection, StoreConnection::Request& request) {
  const StoreTable::Value value = table_.find(request.key);
  // An abandoned claim is not a key that a client has set: its value is the reason.
  if (!request.value.empty() && claims_.is_abandoned(request.key))
    return connection.reply(protocol::Reply::kAbandoned, value);
  if (value) return connection.reply(protocol::Reply::kOk, value);
  if (!request.value.empty() && tell_if_abandoned(connection, request.value)) return;
  connection.awaited = request.key;
  connection.claims = std::move(request.value);
  waiting_[request.key].insert(&connection);
  connections_.set_deadline(connection, Clock::now() + std::chrono::milliseconds(request.header.timeout_ms));
}

bool StoreAnswers::claimed(StoreConnection& connection, StoreConnection::Request& request) {
  const StoreTable::Value standing = table_.find(request.key);
  if (standing && (!claims_.holds(request.key) || !claims_.take(request.key, &connection))) {
    connection.reply(protocol::Reply::kOk, standing);
    return true;
  }
  const StoreTable::Value value = table_.set(request.key, std::move(request.value));
  if (value) claims_.take(request.key, &connection);
  return stored(connection, request.key, value, true);
}

bool StoreAnswers::tell_if_abandoned(StoreConnection& connection, std::string_view claims) {
  const auto key = claims_.first_abandoned(claims);
  if (key) connection.reply(protocol::Reply::kAbandoned, table_.find(*key));
  return key.has_value();
}

void StoreAnswers::notify_of_abandoned_claims() {
  while (std::exchange(claims_changed_, false)) {
    std::vector<StoreConnection*> waiters;
    for (const auto& [_, of_key] : waiting_) waiters.insert(waiters.end(), of_key.begin(), of_key.end());
    for (StoreConnection* waiter : waiters) {
      if (waiter->awaited.empty() || waiter->claims.empty() || !tell_if_abandoned(*waiter, waiter->claims)) continue;
      stop_waiting(*waiter);
      connections_.has_reply(*waiter);
    }
  }
}

// Replies, and wakes the clients that wait for the key.
bool StoreAnswers::stored(StoreConnection& connection, const std::string& key, const StoreTable::Value& value,
                          bool wants_it) {
  if (!value) {
    const auto full = fmt::format("the store is full: {} keys, {} bytes", table_.keys(), table_.bytes());
    connection.reply(protocol::Reply::kRefused, std::make_shared<const std::string>(full));
    return true;
  }
  connection.reply(protocol::Reply::kOk, wants_it ? value : nullptr);
  const auto waiters = waiting_.extract(key);
  if (waiters.empty()) return true;
  for (StoreConnection* waiter : waiters.mapped()) {
    waiter->awaited.clear();
    waiter->reply(protocol::Reply::kOk, value);
    connections_.has_reply(*waiter);
  }
  return true;
}

void StoreAnswers::stop_waiting(StoreConnection& connection) {
  if (connection.awaited.empty()) return;
  const auto waiters = waiting_.find(connection.awaited);
  waiters->second.erase(&connection);
  if (waiters->second.empty()) waiting_.erase(waiters);
  connection.awaited.clear();
}

void StoreAnswers::time_out(StoreConnection& connection) {
  stop_waiting(connection);
  connection.reply(protocol::Reply::kTimeout, nullptr);
  connections_.has_reply(connection);
}

void StoreAnswers::forget(StoreConnection& connection) {
  if (claims_.abandon_all(&connection)) claims_changed_ = true;
  stop_waiting(connection);
}

}  // namespace lockstep
