#include "src/comm/mpi/mpi_types.h"

#include <cmath>

#include "lockstep/core/error.h"
#include "src/comm/mpi/library/mpi_runtime.h"
#include "src/core/base/half.h"

namespace lockstep::mpi {

MPI_Datatype moved_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return MPI_FLOAT;
    case DType::kFloat64: return MPI_DOUBLE;
    case DType::kFloat16:
    case DType::kBFloat16: return MPI_UINT16_T;
    case DType::kInt8: return MPI_INT8_T;
    case DType::kUInt8: return MPI_UINT8_T;
    case DType::kInt32: return MPI_INT32_T;
    case DType::kInt64: return MPI_INT64_T;
  }
  LOCKSTEP_CHECK(false, "no element type");
}

DType reduced_type(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

namespace {

template <typename T, bool kIsMax> void extreme_of(const T* in, T* in_out, int count) {
  for (int i = 0; i < count; ++i) {
    const bool wins = kIsMax ? in[i] > in_out[i] : in[i] < in_out[i];
    in_out[i] = wins || std::isnan(in[i]) ? in[i] : in_out[i];  // keep a NaN in in_out, which compares false
  }
}

template <bool kIsMax> void reduce_extremes(void* in, void* in_out, int* count, MPI_Datatype* type) {
  if (*type == MPI_FLOAT)
    extreme_of<float, kIsMax>(static_cast<const float*>(in), static_cast<float*>(in_out), *count);
  else
    extreme_of<double, kIsMax>(static_cast<const double*>(in), static_cast<double*>(in_out), *count);
}

// int8 and uint8 share this code: their sums agree modulo 256.
void reduce_bytes(void* in, void* in_out, int* count, MPI_Datatype*) {
  const auto* const from = static_cast<const unsigned char*>(in);
  auto* const to = static_cast<unsigned char*>(in_out);
  for (int i = 0; i < *count; ++i) to[i] = static_cast<unsigned char>(to[i] + from[i]);
}

// Created on first use, and kept for the process.
template <MPI_User_function* kFunction> MPI_Op own_op() {
  static const MPI_Op op = [] {
    MPI_Op made = MPI_OP_NULL;
    check(api().MPI_Op_create(kFunction, 1, &made), "MPI_Op_create");
    return made;
  }();
  return op;
}

}  // namespace

MPI_Op op_of(ReduceOp op, DType reduced) {
  const bool is_float = reduced == DType::kFloat32 || reduced == DType::kFloat64;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum: return size_of(reduced) == 1 ? own_op<reduce_bytes>() : MPI_SUM;
    case ReduceOp::kProduct: return MPI_PROD;
    case ReduceOp::kMin: return is_float ? own_op<reduce_extremes<false>>() : MPI_MIN;
    case ReduceOp::kMax: return is_float ? own_op<reduce_extremes<true>>() : MPI_MAX;
    case ReduceOp::kBitAnd: return MPI_BAND;
    case ReduceOp::kBitOr: return MPI_BOR;
    case ReduceOp::kBitXor: return MPI_BXOR;
  }
  LOCKSTEP_CHECK(false, "no reduction");
}

void widen(DType from, const std::byte* in, float* out, std::size_t count) {
  const auto all = [&](auto typed) {
    for (std::size_t i = 0; i < count; ++i) out[i] = widen(reinterpret_cast<const decltype(typed)*>(in)[i]);
  };
  from == DType::kFloat16 ? all(Float16{}) : all(BFloat16{});
}

void narrow(DType to, const float* in, std::byte* out, std::size_t count, float factor) {
  if (to == DType::kFloat16)
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<Float16*>(out)[i] = narrow_float16(in[i] * factor);
  else
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<BFloat16*>(out)[i] = narrow_bfloat16(in[i] * factor);
}

}  // namespace lockstep::mpi
