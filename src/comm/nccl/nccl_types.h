// Our types and reductions in NCCL's terms. Each function throws InvalidArgument if NCCL does not support it.
#pragma once

#include <cstddef>

#include "lockstep/comm/operation.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep::nccl {

ncclDataType_t type_of(DType dtype);
ncclRedOp_t operator_of(const Signature& call);

// A factor in the type of the elements, as NCCL expects it.
struct Scalar {
  alignas(8) std::byte bytes[8];
};
Scalar scalar_of(DType dtype, double factor);

}  // namespace lockstep::nccl
