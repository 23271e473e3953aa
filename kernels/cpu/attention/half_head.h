// One head of an attention on 16-bit floats: its rows are widened before, and its results rounded after, so that only
// one head for each thread is in memory as float32.
#pragma once

#include "kernels/cpu/attention/attention_head.h"
#include "kernels/cpu/math/any_float.h"
#include "kernels/cpu/math/scratch.h"

namespace lockstep {

class HalfHead {
 public:
  using Index = std::int64_t;

  HalfHead(const AttentionShape& shape, const AttentionParams& params, DType type, Index head)
      : shape_(shape),
        params_(params),
        type_(type),
        n_(head / shape.heads),
        at_(head % shape.heads * shape.width),
        key_at_(head % shape.heads / shape.group() * shape.width) {
    if (params_.key_lengths != nullptr) params_.key_lengths += n_;
    if (params_.mask != nullptr)
      params_.mask += n_ * params_.mask_strides[0] + head % shape.heads * params_.mask_strides[1];
  }

  AttentionShape alone() const { return {1, shape_.queries, shape_.keys, 1, shape_.width, false}; }
  Index query_floats() const { return shape_.queries * shape_.width; }
  Index key_floats() const { return shape_.keys * shape_.width; }

  // The operands, copied to `memory`, which has room for those floats.
  HeadOperands operands(In q, In k, In v, float* memory) const {
    const auto from = attention_operands(shape_, halves(q), halves(k), halves(v));
    float *const to_k = memory + query_floats(), *const to_v = to_k + key_floats();
    widen_rows(from.q, shape_.operand_row(), shape_.queries, at_, memory);
    widen_rows(from.k, shape_.key_row(), shape_.keys, key_at_, to_k);
    widen_rows(from.v, shape_.key_row(), shape_.keys, key_at_, to_v);
    const Shape queries = {1, shape_.queries, 1, shape_.width}, keys = {1, shape_.keys, 1, shape_.width};
    return {alone(), params_, {memory, queries}, {to_k, keys}, {to_v, keys}, 0};
  }

  void widen_result(In y, float* to) const { widen_rows(halves(y), shape_.row(), shape_.queries, at_, to); }
  void round_result(const float* from, Out y) const { round_rows(from, halves(y), shape_.row(), shape_.queries, at_); }

  // The gradients of q, k and v, one after the other. A gradient that was left out stays so.
  HeadGradients gradients(const HeadOperands& head, Out q, Out k, Out v, bool adds_to_keys, float* memory) const {
    const auto to = attention_operands(shape_, halves(q), halves(k), halves(v));
    float *const of_k = memory + query_floats(), *const of_v = of_k + key_floats();
    const auto view = [&](std::uint16_t* original, bool accumulates, Index rows, Index stride, Index at, float* copy) {
      if (original == nullptr) return OutputView();
      if (accumulates) widen_rows(original, stride, rows, at, copy);
      return OutputView(copy, {1, rows, 1, shape_.width}, accumulates);
    };
    const auto of_keys = [&](std::uint16_t* original, Out own, float* copy) {
      return view(original, adds_to_keys || (shape_.packed ? q : own).accumulate, shape_.keys, shape_.key_row(),
                  key_at_, copy);
    };
    return {head, view(to.q, q.accumulate, shape_.queries, shape_.operand_row(), at_, memory), of_keys(to.k, k, of_k),
            of_keys(to.v, v, of_v)};
  }
  void round_gradients(const float* memory, Out q, Out k, Out v) const {
    const auto to = attention_operands(shape_, halves(q), halves(k), halves(v));
    const float *const of_k = memory + query_floats(), *const of_v = of_k + key_floats();
    if (to.q != nullptr) round_rows(memory, to.q, shape_.operand_row(), shape_.queries, at_);
    if (to.k != nullptr) round_rows(of_k, to.k, shape_.key_row(), shape_.keys, key_at_);
    if (to.v != nullptr) round_rows(of_v, to.v, shape_.key_row(), shape_.keys, key_at_);
  }

 private:
  static const std::uint16_t* halves(In view) { return static_cast<const std::uint16_t*>(view.data); }
  static std::uint16_t* halves(Out view) { return static_cast<std::uint16_t*>(view.data); }

  void widen_rows(const std::uint16_t* first, Index stride, Index rows, Index at, float* to) const {
    const auto from = head_matrix(first, stride, rows, n_, at);
    for (Index t = 0; t < rows; ++t) widen(type_, from.row(t), to + t * shape_.width, shape_.width);
  }
  void round_rows(const float* from, std::uint16_t* first, Index stride, Index rows, Index at) const {
    const auto to = head_matrix(first, stride, rows, n_, at);
    for (Index t = 0; t < rows; ++t) narrow(type_, from + t * shape_.width, to.row(t), shape_.width);
  }

  const AttentionShape& shape_;
  AttentionParams params_;  // its key lengths and its mask begin with this head's
  DType type_;
  Index n_, at_, key_at_;  // the head's batch, and its offset in a row
};

}  // namespace lockstep
