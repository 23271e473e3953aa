// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A number is a pure function of (seed, stream, index), so that what rank r draws never depends on what others drew.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// One block: 128 random bits for a 128-bit counter and a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// A sequence of numbers of one (seed, stream). Cheap to make: one a sample, one a parameter.
class Philox {
 public:
  Philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t first_block = 0);

  std::uint32_t next();  // uniform over all 32-bit values
  float uniform();       // [0, 1), 24 bits
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  std::uint32_t below(std::uint32_t bound);  // [0, bound), unbiased; bound > 0
  float normal();                            // mean 0, standard deviation 1 (Box-Muller)

 private:
  std::uint64_t seed_, stream_, block_;
  std::array<std::uint32_t, 4> words_{};
  int used_ = 4;
  float spare_normal_ = 0;
  bool has_spare_ = false;
};

// The purpose of a stream. Everything in a program may have the same seed and yet no two purposes draw the same
// numbers.
enum class RandomUse : std::uint64_t { kProgram, kWeights, kOrder, kAugmentation, kGeneratedSet, kDropout };

// Stream `number` of a purpose, which takes the highest 4 bits: a program's own streams are 0, 1, 2, ... below 2^60.
// Throws InvalidArgument for a number of 2^60 or more.
std::uint64_t random_stream(RandomUse use, std::uint64_t number);

// The seed of this thread's model initialisation and the stream of the next parameter. Each initialised tensor takes
// the next stream: weights depend on the seed and the order of construction alone, never on the rank.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t next_stream = 0;   // of RandomUse::kWeights
  std::uint64_t next_dropout = 0;  // of RandomUse::kDropout

  bool operator==(const RandomState&) const = default;
};
void manual_seed(std::uint64_t seed);  // restarts the streams
RandomState random_state();
void set_random_state(const RandomState& state);

// Dropout. Each call in training takes this thread's next stream, so that (seed, step, call of the step) say what it
// draws: ranks that run the same model draw alike, a checkpoint that holds the RandomState resumes with the next one,
// and a forward pass after set_random_state(the state before it) draws the same again. An element's number counts from
// the first sample of the whole batch, so that masks are those of one rank with all samples where each rank says which
// ones it has: row i of a batch is sample first + i * stride. A DataLoader says so by itself, for the batch at which it
// stands. Strategies that cut a batch into parts number each part's rows from those of the batch; who cuts one by hand
// says set_sample_numbers(numbers_of_the_batch.from_row(begin)) before each part.
struct SampleNumbers {
  std::int64_t first = 0, stride = 1;

  SampleNumbers from_row(std::int64_t row) const {
    return {first + row * stride, stride};
  }  // of the batch's rows from this one on
  bool operator==(const SampleNumbers&) const = default;
};
void set_sample_numbers(
    const SampleNumbers& numbers);  // of this thread's batches from now on. InvalidArgument: first < 0, stride < 1
SampleNumbers sample_numbers();
void set_first_sample(std::int64_t sample);  // {sample, 1}: where a rank has samples 32 to 63, 32
std::int64_t first_sample();                 // of sample_numbers()

struct DropoutDraw {
  std::uint64_t seed, stream;
  SampleNumbers samples;
};
DropoutDraw next_dropout();

// Fill a float32 tensor on any device from this thread's next stream.
void fill_uniform(const Tensor& tensor, float low, float high);
void fill_normal(const Tensor& tensor, float mean, float standard_deviation);
// Normal, redrawn outside two standard deviations (TensorFlow's truncated_normal).
void fill_truncated_normal(const Tensor& tensor, float mean, float standard_deviation);

}  // namespace lockstep
#pragma GCC visibility pop
