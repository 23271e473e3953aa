// The nodes that this thread records while a function runs: one run of a checkpointed function. Recorded nodes are
// released with the segment, so that a tensor that the function has stored elsewhere cannot be differentiated by
// mistake.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep {

class TapeSegment {
 public:
  TapeSegment();
  ~TapeSegment();
  TapeSegment(const TapeSegment&) = delete;
  TapeSegment& operator=(const TapeSegment&) = delete;

  // Runs `function` and collects its nodes, except those of nested segments.
  Tensor record(const std::function<Tensor()>& function);
  bool contains(const Node& node) const { return node.segment_ == id_; }
  // The tensors from outside through which gradients of `result` leave the segment: leaves that require one, and
  // results that were recorded before. Each once, those nearest to the result first.
  std::vector<Tensor> ends_below(const Tensor& result) const;

  static void note(const std::shared_ptr<Node>& node);  // called when a node is recorded

 private:
  static thread_local TapeSegment* current_;
  const std::uint64_t id_;
  std::vector<std::weak_ptr<Node>> nodes_;
};

}  // namespace lockstep
