// What a process group is made of; for the files that implement it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A call's data, before it is numbered.
struct CallData {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  std::shared_ptr<const Layout> layout = {};
};

class ProcessGroup::Impl {
 public:
  Impl(const Place& place, std::unique_ptr<Backend> cpu_backend, std::chrono::milliseconds timeout);

  Backend& backend(DeviceKind device) const;

  // Numbers the call; a call that is refused here leaves the numbers as they were.
  Operation number(OperationKind kind, const CallData& data, const CallOptions& call);
  void run(OperationKind kind, const CallData& data, const CallOptions& call) { backend(call.device).run(number(kind, data, call)); }
  Work start(OperationKind kind, const CallData& data, const CallOptions& call) {
    Backend& chosen = backend(call.device);
    return chosen.start(number(kind, data, call));
  }
  Work send(Message message, const CallOptions& call);
  Work receive(Message message, const CallOptions& call);
  std::chrono::milliseconds timeout_of(const CallOptions& call) const;
  void leave() noexcept;

  Place place;
  std::chrono::milliseconds timeout;
  std::array<std::unique_ptr<Backend>, 2> backends;  // by DeviceKind
  std::array<Capabilities, 2> capabilities;          // theirs
  // How this group was made; split() makes others alike.
  std::shared_ptr<Store> store;  // null for a group around backends made by hand
  std::string token;
  std::string advertise_address;
  ProcessGroupOptions options;
  std::uint64_t splits = 0;

  std::uint64_t sequence = 0;
  bool has_left = false;
};

}  // namespace lockstep
