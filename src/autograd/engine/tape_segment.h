// The nodes that this thread records while a function runs: one run of a checkpoint's function. A segment hands out
// nothing: what it recorded is released when it goes, so that a tensor that the function has put aside cannot be
// differentiated by mistake.
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

  // Runs `function`, whose nodes are this segment's; those of a segment that it opens itself are not.
  Tensor record(const std::function<Tensor()>& function);
  bool contains(const Node& node) const { return node.segment_ == id_; }
  // The tensors from outside through which gradients leave the segment on the way down from `result`: leaves that want
  // one, and results that were recorded before. Each once, nearest to the result first.
  std::vector<Tensor> ends_below(const Tensor& result) const;

  static void note(const std::shared_ptr<Node>& node);  // a node was recorded

 private:
  static thread_local TapeSegment* current_;
  const std::uint64_t id_;
  std::vector<std::weak_ptr<Node>> nodes_;
};

}  // namespace lockstep
