// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A number is a pure function of (seed, stream, index), so the numbers that one rank draws never depend on the others.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// One block: 128 random bits for a 128-bit counter and a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// The sequence of numbers of one (seed, stream). Cheap to construct: use one per sample or parameter.
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

// The purpose of a stream. All parts of a program may share one seed, and still no two purposes draw the same numbers.
enum class RandomUse : std::uint64_t { kProgram, kWeights, kOrder, kAugmentation, kGeneratedSet, kDropout };

// Stream `number` of a purpose. The purpose is encoded in the upper 4 bits; a program's own streams are 0, 1, 2, ...
// below 2^60. Throws InvalidArgument for a number of 2^60 or more.
std::uint64_t random_stream(RandomUse use, std::uint64_t number);

// The seed for this thread's model initialisation, and the stream of the next parameter. Each initialised tensor uses
// the next stream, so weights depend only on the seed and the order of construction, never on the rank.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t next_stream = 0;   // stream of RandomUse::kWeights
  std::uint64_t next_dropout = 0;  // stream of RandomUse::kDropout

  bool operator==(const RandomState&) const = default;
};
void manual_seed(std::uint64_t seed);  // restarts the streams
RandomState random_state();
void set_random_state(const RandomState& state);

// Dropout. Each call in training uses this thread's next stream, so the mask is determined by seed, step and the number
// of the call within the step: ranks that run the same model use the same streams, a checkpoint with the RandomState
// resumes at the next one, and a forward pass after set_random_state(the state before it) draws the same mask again.
// Elements are numbered from the first sample of the global batch. So if each rank states which samples it has, the
// masks are those of one rank with all samples: row i of this rank's batch is sample first + i * stride. DataLoader
// sets this for its current batch. Strategies that split a batch set it for each part; code that splits a batch itself
// calls set_sample_numbers(numbers_of_the_batch.from_row(begin)) before each part.
struct SampleNumbers {
  std::int64_t first = 0, stride = 1;

  // The numbers of the batch's rows from this one on.
  SampleNumbers from_row(std::int64_t row) const { return {first + row * stride, stride}; }
  bool operator==(const SampleNumbers&) const = default;
};
// Applies to this thread's batches from now on. Throws InvalidArgument if first < 0 or stride < 1.
void set_sample_numbers(const SampleNumbers& numbers);
SampleNumbers sample_numbers();
void set_first_sample(std::int64_t sample);  // {sample, 1}: for a rank with samples 32 to 63, 32
std::int64_t first_sample();                 // the first of sample_numbers()

struct DropoutDraw {
  std::uint64_t seed, stream;
  SampleNumbers samples;
};
DropoutDraw next_dropout();

// These fill a float32 tensor on any device from this thread's next stream.
void fill_uniform(const Tensor& tensor, float low, float high);
void fill_normal(const Tensor& tensor, float mean, float standard_deviation);
// Normal, drawn again outside two standard deviations (TensorFlow's truncated_normal).
void fill_truncated_normal(const Tensor& tensor, float mean, float standard_deviation);

}  // namespace lockstep
#pragma GCC visibility pop
