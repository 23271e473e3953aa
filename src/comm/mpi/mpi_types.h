// MPI's names for Lockstep's types and operations.
#pragma once

#include <cstddef>

#include "lockstep/comm/operation.h"
#include "src/comm/mpi/library/mpi_api.h"

namespace lockstep::mpi {

// float16 and bfloat16 have no MPI type: they are two bytes, which MPI only moves.
MPI_Datatype moved_type(DType dtype);
// The type in which a type is reduced: float32 for float16 and bfloat16.
DType reduced_type(DType dtype);
// Two operations are our own: minimum and maximum of floats, because MPI does not define the result for NaN (here it is
// NaN), and sums of 8-bit integers, which Open MPI's vector code saturates while its other code wraps (its issue 8045).
MPI_Op op_of(ReduceOp op, DType reduced);

void widen(DType from, const std::byte* in, float* out, std::size_t count);
// Multiplies by `factor`, then rounds to nearest.
void narrow(DType to, const float* in, std::byte* out, std::size_t count, float factor);

}  // namespace lockstep::mpi
