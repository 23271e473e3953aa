// Runs a function as every rank of a process group over the real ring backend; the ranks are threads.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/comm/memory_store.h"

namespace lockstep::testing {

// Returns what each rank threw, "" for those that ended well.
inline std::vector<std::string> run_ranks(int ranks, const std::string& transport,
                                          const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(ProcessGroup::create({rank, ranks, rank, ranks}, store, "token",
                                  {.transport = transport, .timeout = std::chrono::seconds(60)}));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

inline void expect_all_well(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

}  // namespace lockstep::testing
