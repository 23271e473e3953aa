// A store for tests: a table in memory that forked processes share, so that backends can be tested without a server.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

class TableStore : public Store {
 public:
  // Construct it before forking.
  TableStore() {
    void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LOCKSTEP_CHECK(memory != MAP_FAILED, "mmap");
    table_ = new (memory) Table;
  }
  ~TableStore() override { munmap(table_, sizeof(Table)); }

  void set(std::string_view key, std::string_view value) override {
    const Lock lock(*table_);
    find_or_add(key).assign(value);
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (true) {
      {
        const Lock lock(*table_);
        for (const Entry& entry : table_->entries)
          if (entry.used && key == entry.key) return std::string(entry.value, entry.length);
      }
      if (std::chrono::steady_clock::now() > deadline) throw TimeoutError("table store: no key '{}'", key);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const Lock lock(*table_);
    Entry& entry = find_or_add(key);
    const std::int64_t sum = amount + (entry.length != 0 ? std::stoll(std::string(entry.value, entry.length)) : 0);
    entry.assign(std::to_string(sum));
    return sum;
  }
  std::string set_if_absent(std::string_view key, std::string_view value) override {
    const Lock lock(*table_);
    Entry& entry = find_or_add(key);
    if (!entry.assigned) entry.assign(value);
    return std::string(entry.value, entry.length);
  }

  void erase_below(std::string_view) override {}  // there is room for all

 private:
  struct Entry {
    bool used = false, assigned = false;
    std::size_t length = 0;
    char key[64] = {};
    char value[1200] = {};
    void assign(std::string_view text) {
      LOCKSTEP_CHECK(text.size() <= sizeof value, "value too long");
      std::memcpy(value, text.data(), length = text.size());
      assigned = true;
    }
  };
  struct Table {
    std::atomic<bool> locked{false};
    std::array<Entry, 128> entries;
  };
  struct Lock {
    explicit Lock(Table& t) : table(t) {
      while (table.locked.exchange(true)) std::this_thread::yield();
    }
    ~Lock() { table.locked.store(false); }
    Table& table;
  };

  Entry& find_or_add(std::string_view key) {
    for (Entry& entry : table_->entries) {
      if (entry.used && key == entry.key) return entry;
      if (entry.used) continue;
      LOCKSTEP_CHECK(key.size() < sizeof entry.key, "key too long");
      std::memcpy(entry.key, key.data(), key.size());
      entry.used = true;
      return entry;
    }
    LOCKSTEP_CHECK(false, "table store: full");
  }

  Table* table_;
};

}  // namespace lockstep::testing
