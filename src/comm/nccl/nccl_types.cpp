#include "src/comm/nccl/nccl_types.h"

#include <cstring>

#include "lockstep/core/error.h"
#include "src/comm/nccl/nccl_communicator.h"
#include "src/core/base/half.h"

namespace lockstep::nccl {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return ncclFloat32;
    case DType::kFloat64: return ncclFloat64;
    case DType::kFloat16: return ncclFloat16;
    case DType::kBFloat16: return ncclBfloat16;
    case DType::kInt8: return ncclInt8;
    case DType::kUInt8: return ncclUint8;
    case DType::kInt32: return ncclInt32;
    case DType::kInt64: return ncclInt64;
  }
  throw InvalidArgument("NCCL does not support the type {}", name_of(dtype));
}

Scalar scalar_of(DType dtype, double factor) {
  Scalar scalar{};
  const auto store = [&](auto value) { std::memcpy(scalar.bytes, &value, sizeof value); };
  if (dtype == DType::kFloat64)
    store(factor);
  else if (dtype == DType::kFloat32)
    store(static_cast<float>(factor));
  else if (dtype == DType::kFloat16)
    store(narrow_float16(static_cast<float>(factor)).bits);
  else
    store(narrow_bfloat16(static_cast<float>(factor)).bits);
  return scalar;
}

// NCCL averages by multiplying each rank's value by 1 / n in the elements' type: with 16 bits and three ranks, that is
// 0.2 % too much. Here the sum is divided afterwards, see Queue::divide().
ncclRedOp_t operator_of(const Signature& call) {
  switch (call.op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kAvg: return is_averaged_apart(call) ? ncclSum : ncclAvg;
    case ReduceOp::kProduct: return ncclProd;
    case ReduceOp::kMin: return ncclMin;
    case ReduceOp::kMax: return ncclMax;
    default: throw InvalidArgument("NCCL does not support the reduction {}", name_of(call.op));
  }
}

}  // namespace lockstep::nccl
