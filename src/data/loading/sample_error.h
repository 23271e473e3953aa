// What a data set or a collate function threw in a loader's thread, with the samples that it was about.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

// To be called in a handler: throws the present exception again, of the same class of lockstep::Error (Error for a
// class that is none), behind "DataLoader: sample 7 of epoch 0: ". The first one is nested in it
// (std::rethrow_if_nested).
[[noreturn]] void rethrow_for_sample(std::int64_t index, std::int64_t epoch);

// The same, of a function that makes a batch of samples `indices`.
[[noreturn]] void rethrow_for_batch(std::span<const std::int64_t> indices, std::int64_t epoch);

}  // namespace lockstep::data
