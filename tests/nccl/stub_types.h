// Converts NCCL's types and reductions to ours.
#pragma once

#include <nccl.h>

#include "lockstep/comm/operation.h"
#include "src/core/base/half.h"

namespace lockstep::testing {

inline DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: return DType::kInt8;
    case ncclUint8: return DType::kUInt8;
    case ncclInt32: return DType::kInt32;
    case ncclInt64: return DType::kInt64;
    case ncclFloat16: return DType::kFloat16;
    case ncclBfloat16: return DType::kBFloat16;
    case ncclFloat64: return DType::kFloat64;
    default: return DType::kFloat32;
  }
}

inline ReduceOp op_of(ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return ReduceOp::kProduct;
    case ncclMax: return ReduceOp::kMax;
    case ncclMin: return ReduceOp::kMin;
    default:
      return ReduceOp::kSum;  // also averages, and reductions with a factor: every rank multiplies its own values
  }
}

// 1 / n in the element type.
inline double share_of_average(int ranks, ncclDataType_t type) {
  const double share = 1.0 / ranks;
  return type == ncclFloat64    ? share
         : type == ncclBfloat16 ? widen(narrow_bfloat16(static_cast<float>(share)))
         : type == ncclFloat16  ? widen(narrow_float16(static_cast<float>(share)))
                                : static_cast<float>(share);
}

}  // namespace lockstep::testing
