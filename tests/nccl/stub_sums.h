// The sums of the NCCL stub: computed as in a ring.
#pragma once

#include <cstring>
#include <vector>

#include "src/comm/host/reduce/reduce_kernels.h"
#include "tests/nccl/stub_types.h"
#include "tests/nccl/stub_world.h"

namespace lockstep::testing {

inline std::size_t bytes_of(std::size_t count, ncclDataType_t type) { return count * size_of(dtype_of(type)); }

// out = the reduction of all ranks' inputs, from element `begin`, in the order of a ring that begins after rank `last`:
// each rank rounds to the element's type.
inline void reduce_chunk(const std::vector<Data>& all, std::byte* out, std::size_t begin, std::size_t count,
                         ncclDataType_t type, ncclRedOp_t op, std::size_t last) {
  std::vector<const std::byte*> in;
  for (const Data& each : all) {
    if (!each || each->size() < bytes_of(begin + count, type)) return;  // the ranks' calls disagree
    in.push_back(each->data() + bytes_of(begin, type));
  }
  const std::size_t n = all.size();
  if (count != 0) std::memcpy(out, in[(last + 1) % n], bytes_of(count, type));
  for (std::size_t hop = 2; hop <= n; ++hop) {
    const std::byte* const inputs[] = {out, in[(last + hop) % n]};
    std::byte* const outputs[] = {out};
    host::reduce({dtype_of(type), op_of(op), 2, 1, inputs, outputs, count});
  }
}

// Every chunk's sum ends at a different rank; calls that are launched together are divided into chunks together.
inline void reduce_all(const std::vector<Data>& all, std::byte* out, std::size_t count, ncclDataType_t type,
                       ncclRedOp_t op, std::size_t grouped) {
  const std::size_t n = all.size();
  for (std::size_t chunk = 0; chunk < n; ++chunk) {
    const std::size_t begin = count * chunk / n, end = count * (chunk + 1) / n;
    reduce_chunk(all, out + bytes_of(begin, type), begin, end - begin, type, op, chunk + grouped - 1);
  }
}

}  // namespace lockstep::testing
