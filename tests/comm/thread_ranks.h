// Runs a function on every rank of a group whose ranks are threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/comm/store/memory_store.h"

namespace lockstep {

inline void run_ranks(int ranks, const std::string& transport, const std::function<void(ProcessGroup&)>& body) {
  using namespace std::chrono_literals;
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto group =
            ProcessGroup::create({rank, ranks, rank, ranks}, store, "secret",
                                 {.backend = "host", .transport = transport, .timeout = 20s, .store_timeout = 20s});
        body(*group);
      } catch (const Error& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep
