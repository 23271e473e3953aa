// The calls that are part of a graph: they run when the graph is launched.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep::nccl {

class GraphCalls : public CompletionQueue {
 public:
  explicit GraphCalls(Device& device) : device_(device) {}

  // The event after the next operation.
  Event& add(const Operation& operation) {
    const Signature& call = operation.signature;
    for (const std::uint64_t part :
         {call.count, call.layout, static_cast<std::uint64_t>(call.kind), static_cast<std::uint64_t>(call.dtype),
          static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.root)})
      hash_ = (hash_ ^ part) * 0x9e3779b97f4a7c15, hash_ ^= hash_ >> 29;
    return add_mark();
  }
  Event& add_mark() { return *events_.emplace_back(device_.new_event()); }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t calls() const { return events_.size(); }

  bool done(std::uint64_t) override { return false; }
  void wait(std::uint64_t ticket) override {
    throw InvalidArgument(
        "the host cannot wait for call {} of a graph that is being recorded: it runs when the graph is launched",
        ticket);
  }
  void stream_wait(std::uint64_t ticket, Stream& stream) override { events_[ticket - 1]->stream_wait(stream); }

 private:
  Device& device_;
  std::vector<std::unique_ptr<Event>> events_;  // by ticket, from 1
  std::uint64_t hash_ = 0x243f6a8885a308d3;
};

}  // namespace lockstep::nccl
