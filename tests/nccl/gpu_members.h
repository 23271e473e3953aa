// Ranks of a process group whose devices are GPUs simulated by threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/conformance/table_store.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {

inline const std::string kNothing = "nothing was thrown";
inline const CallOptions kOnGpu{.device = DeviceKind::kCuda};

struct Member {
  ProcessGroup& group;
  RecordingDevice& device;
  std::unique_ptr<Graph>& outlives_group;
  float* numbers(std::size_t count, float value) {
    memory.push_back(device.allocate(count * sizeof(float)));
    auto* const data = reinterpret_cast<float*>(memory.back().data());
    device.kernels().fill({data, {static_cast<std::int64_t>(count)}}, value, device.default_stream());
    return data;
  }
  std::vector<Buffer> memory = {};
};

// Returns each rank's error as text.
inline std::vector<std::string> run_members(int ranks, const std::function<void(Member&)>& body,
                                            const std::string& backend = "") {
  const auto store = std::make_shared<TableStore>();
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      RecordingDevice device(r);
      std::unique_ptr<Graph> outlives_group;
      said[static_cast<std::size_t>(r)] = message_of([&] {
        ProcessGroupOptions options;
        options.backend = backend;
        options.timeout = options.store_timeout = std::chrono::seconds(20);
        options.device = &device;
        const auto group = ProcessGroup::create({r, ranks, r, ranks}, store, "secret", options);
        Member member{*group, device, outlives_group};
        body(member);
      });
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

}  // namespace lockstep::testing
