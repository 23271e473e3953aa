// Lockstep's types and operations in MPI's words.
#pragma once

#include <cstddef>

#include "lockstep/comm/operation.h"
#include "src/comm/mpi/library/mpi_api.h"

namespace lockstep::mpi {

// float16 and bfloat16 have no type in MPI: two bytes that MPI only moves.
MPI_Datatype moved_type(DType dtype);
// The type that is reduced in its place: float32 for the two.
DType reduced_type(DType dtype);
// Two are operations of our own: minimum and maximum of floats, since MPI leaves open what becomes of NaN (it wins),
// and sums of 8-bit integers, which Open MPI's vector code saturates and its other code wraps (its issue 8045).
MPI_Op op_of(ReduceOp op, DType reduced);

void widen(DType from, const std::byte* in, float* out, std::size_t count);
// Rounds to nearest, after multiplying by `factor`.
void narrow(DType to, const float* in, std::byte* out, std::size_t count, float factor);

}  // namespace lockstep::mpi
