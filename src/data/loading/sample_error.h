// Adds the samples' indices to exceptions of data sets and collate functions in a loader's threads.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

// Call it in a handler. Throws an exception of the current one's class, if that is a lockstep::Error (else Error), with
// "DataLoader: sample 7 of epoch 0: " before its text. The current exception is nested in it (std::rethrow_if_nested).
[[noreturn]] void rethrow_for_sample(std::int64_t index, std::int64_t epoch);

// The same for a function that makes a batch from samples `indices`.
[[noreturn]] void rethrow_for_batch(std::span<const std::int64_t> indices, std::int64_t epoch);

}  // namespace lockstep::data
