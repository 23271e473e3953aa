// The matrices of a TensorFlow tutorial's comparison of devices (eat_tensorflow2_in_30_days, chapter 6-3):
//
//   with tf.device("/gpu:0"):
//       tf.random.set_seed(0)
//       a = tf.random.uniform((10000, 100), minval=0, maxval=3.0)
//       b = tf.random.uniform((100, 100000), minval=0, maxval=3.0)
//       tf.print(tf.reduce_sum(tf.reduce_sum(a @ b, axis=0), axis=0))     # 2.24953778e+11
//
// tf.random.uniform draws from Philox4x32-10, as Lockstep does: the key is the global seed, the upper half of the
// counter the operation's seed, and the lower half counts blocks of four numbers; the lower 23 bits of each make a
// float in [0, 1). With set_seed(0), the seeds of the first two operations are Python's
// random.Random(0).randint(0, 2**31 - 1).
#pragma once

#include <lockstep/lockstep.h>

#include <array>
#include <bit>
#include <cstdint>

constexpr std::uint32_t kSeedOfFirst = 1654615998, kSeedOfSecond = 1806341205;
constexpr const char* kTutorialsSum = "2.24953778e+11";

// Calls put(i, value) for the `count` numbers of tf.random.uniform(..., minval=0, maxval=3.0).
template <typename Put> void draw_as_tensorflow(std::int64_t count, std::uint32_t operation_seed, const Put& put) {
  for (std::int64_t i = 0; i < count;) {
    const auto block = static_cast<std::uint64_t>(i) / 4;
    const auto words = lockstep::philox4x32(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), operation_seed, 0}, {0, 0});
    for (std::size_t word = 0; word < words.size() && i < count; ++word, ++i)
      put(i, (std::bit_cast<float>(0x3F800000U | (words[word] & 0x7FFFFFU)) - 1) * 3.0F);
  }
}

// (rows, inner), in the order in which TensorFlow draws it.
inline lockstep::Tensor tutorials_first(std::int64_t rows, std::int64_t inner) {
  const auto matrix = lockstep::Tensor::empty({rows, inner}, lockstep::DType::kFloat32, lockstep::cpu_device());
  const auto values = matrix.span<float>();
  draw_as_tensorflow(matrix.count(), kSeedOfFirst,
                     [&](std::int64_t i, float value) { values[static_cast<std::size_t>(i)] = value; });
  return matrix;
}

// TensorFlow draws (inner, columns); returns its transpose, (columns, inner).
inline lockstep::Tensor tutorials_second(std::int64_t inner, std::int64_t columns) {
  const auto matrix = lockstep::Tensor::empty({columns, inner}, lockstep::DType::kFloat32, lockstep::cpu_device());
  const auto values = matrix.span<float>();
  draw_as_tensorflow(matrix.count(), kSeedOfSecond, [&](std::int64_t i, float value) {
    values[static_cast<std::size_t>(i % columns * inner + i / columns)] = value;
  });
  return matrix;
}
