// A store within one process: for a job of one rank, and for tests whose ranks are threads.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/comm/store.h"

namespace lockstep {

class MemoryStore : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string set_if_absent(std::string_view key, std::string_view value) override;
  void erase_below(std::string_view prefix) override;

  std::size_t keys() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::int64_t, std::less<>> counters_;
};

}  // namespace lockstep
