#include "python/backend/store_adapter.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/core/crypto.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/interface.h"

namespace lockstep::torch_backend {

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kRouteTime(10000);

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

class StoreAdapter : public Store {
  // Calls the store, whose failures are those of the rendezvous.
  template <typename Call> auto reach(std::string_view key, Call&& call) {
    const std::string known(key);
    {
      const std::lock_guard lock(mutex_);
      used_.insert(known);
    }
    try {
      return call(known);
    } catch (const c10::Error& failure) {
      throw RendezvousError("the store of torch.distributed failed at key {}: {}", known,
                            failure.what_without_backtrace());
    }
  }

 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(std::string_view key, std::string_view value) override {
    reach(key, [&](const std::string& known) { return store_->set(known, bytes_of(value)); });
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    return reach(key, [&](const std::string& known) {
      if (!await(known, timeout))
        throw TimeoutError("store: key {} did not exist within {} ms", known, timeout.count());
      return text_of(store_->get(known));
    });
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return reach(key, [&](const std::string& known) { return store_->add(known, amount); });
  }

  std::string set_if_absent(std::string_view key, std::string_view value) override {
    return reach(key, [&](const std::string& known) {
      return text_of(store_->compareSet(known, std::vector<std::uint8_t>{}, bytes_of(value)));
    });
  }

  // PyTorch's stores cannot list their keys: those that this rank has used are erased.
  void erase_below(std::string_view prefix) override {
    const std::lock_guard lock(mutex_);
    for (auto key = used_.lower_bound(prefix); key != used_.end() && key->starts_with(prefix); key = used_.erase(key))
      store_->deleteKey(*key);
  }

 private:
  bool await(const std::string& key, milliseconds timeout) {
    if (timeout <= milliseconds(0)) return store_->check({key});
    try {
      store_->wait({key}, timeout);
      return true;
    } catch (const c10::Error&) {  // each store has its own for the timeout
      return store_->check({key});
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::mutex mutex_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

std::shared_ptr<Store> meeting_store(c10::intrusive_ptr<c10d::Store> store, int rank) {
  auto adapter = std::make_shared<StoreAdapter>(std::move(store));
  const std::int64_t meeting = adapter->add("lockstep/meetings of rank " + std::to_string(rank), 1);
  return scoped(adapter, "lockstep/" + std::to_string(meeting) + "/");
}

std::string shared_token(Store& store) {
  std::array<std::byte, 32> random;
  crypto::fill_random(random);
  return store.set_if_absent("token", crypto::hex(random));
}

std::string advertised_address(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto view = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
  const auto inner = view ? view->getUnderlyingNonPrefixStore() : store;
  const auto tcp = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(inner);
  if (!tcp) return "127.0.0.1";
  return own_address(tcp->getHost(), tcp->getPort(), std::chrono::steady_clock::now() + kRouteTime);
}

}  // namespace lockstep::torch_backend
