// NCCL's types and reductions as ours.
#pragma once

#include <nccl.h>

#include "lockstep/comm/operation.h"

namespace lockstep::testing {

inline DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return DType::kInt8;
    case ncclUint8:
      return DType::kUInt8;
    case ncclInt32:
      return DType::kInt32;
    case ncclInt64:
      return DType::kInt64;
    case ncclFloat16:
      return DType::kFloat16;
    case ncclBfloat16:
      return DType::kBFloat16;
    case ncclFloat64:
      return DType::kFloat64;
    default:
      return DType::kFloat32;
  }
}

inline ReduceOp op_of(ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return ReduceOp::kProduct;
    case ncclMax:
      return ReduceOp::kMax;
    case ncclMin:
      return ReduceOp::kMin;
    default:
      return ReduceOp::kSum;  // and averages, and what was made with a factor: every rank multiplies its own
  }
}

}  // namespace lockstep::testing
