#include "src/comm/mpi/mpi_types.h"

#include "lockstep/core/error.h"
#include "src/comm/ring/half.h"

namespace lockstep::mpi {

MPI_Datatype moved_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kFloat16:
    case DType::kBFloat16:
      return MPI_UINT16_T;
    case DType::kInt8:
      return MPI_INT8_T;
    case DType::kUInt8:
      return MPI_UINT8_T;
    case DType::kInt32:
      return MPI_INT32_T;
    case DType::kInt64:
      return MPI_INT64_T;
  }
  LOCKSTEP_CHECK(false, "no element type");
}

DType reduced_type(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype; }

MPI_Op op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return MPI_SUM;
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
  }
  LOCKSTEP_CHECK(false, "no reduction");
}

void widen(DType from, const std::byte* in, float* out, std::size_t count) {
  const auto all = [&](auto typed) {
    for (std::size_t i = 0; i < count; ++i) out[i] = ring::widen(reinterpret_cast<const decltype(typed)*>(in)[i]);
  };
  from == DType::kFloat16 ? all(ring::Float16{}) : all(ring::BFloat16{});
}

void narrow(DType to, const float* in, std::byte* out, std::size_t count, float factor) {
  if (to == DType::kFloat16)
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<ring::Float16*>(out)[i] = ring::narrow_float16(in[i] * factor);
  else
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<ring::BFloat16*>(out)[i] = ring::narrow_bfloat16(in[i] * factor);
}

}  // namespace lockstep::mpi
