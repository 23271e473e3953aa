// Checks that the ranks' copies of a model are equal.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Returns a SHA-256 over names, shapes and bytes of the tensors, in hex: equal on ranks whose replicas are bitwise
// equal.
std::string hash_of(const std::vector<NamedTensor>& tensors);
// Collective. Throws MismatchError with the ranks whose hash differs from rank 0's.
void check_replicas_equal(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what);

}  // namespace lockstep
#pragma GCC visibility pop
