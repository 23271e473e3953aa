// The classic comparison of devices: the product of a 10000x100 and a 100x100000 matrix, and the sum of its 10^9
// elements, on the CPU and on the GPU. Run it from the build's folder:
//
//   examples/device_matmul
//
// The sum is 224865351102 (the CPU takes some seconds). A smaller case:
//
//   examples/device_matmul --rows 400 --columns 2000
//
//   400x100 by 100x2000, product and its sum; the sum must be 180875753
//   cpu: sum 180875753 in 0.05 s
//   cuda:0: sum 180875753 in ... s
//
// With the very numbers of TensorFlow's tutorial (tutorial_matrices.h), and first the product of its guide "Use a GPU":
//
//   examples/device_matmul --tutorial
//
//   [[22 28]
//    [49 64]] on cpu
//   10000x100 by 100x100000, product and its sum; TensorFlow prints 2.24953778e+11
//   cpu: 2.24953778e+11 in 4.2 s
//
// Without a GPU the last line says why, and the program still succeeds unless --device cuda requests one. The elements
// are small whole numbers, so that float32 holds every sum exactly: all devices must find the same sum, bit for bit,
// which also follows from the sums of the matrices' columns. A wrong sum gives exit code 1.
#include <fmt/format.h>
#include <lockstep/lockstep.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "examples/device_matmul_flags.h"
#include "examples/tutorial_matrices.h"

namespace ls = lockstep;

namespace {

// Rows of `inner` whole numbers from 0 to 3.
ls::Tensor whole_numbers(std::int64_t rows, std::int64_t inner, std::uint64_t stream) {
  const ls::Tensor matrix = ls::Tensor::empty({rows, inner});
  ls::Philox random(/*seed=*/1, stream);
  for (float& value : matrix.span<float>()) value = static_cast<float>(random.below(static_cast<int>(kLargest) + 1));
  return matrix;
}

std::vector<double> column_sums(const ls::Tensor& matrix) {
  const auto inner = static_cast<std::size_t>(matrix.shape()[1]);
  std::vector<double> sums(inner);
  const auto values = matrix.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % inner] += values[i];
  return sums;
}

// How many elements of the product are summed in float32 before float64 takes over: few enough to be exact, and a
// divisor of a row.
std::int64_t piece_of(const Sizes& sizes) {
  auto piece = static_cast<std::int64_t>(std::min(128.0, kExactInFloat / sizes.largest_element()));
  while (sizes.columns % piece != 0) --piece;
  return piece;
}

struct Result {
  double sum = 0, seconds = 0;
};

// `second` is transposed, (columns, inner), like a linear layer's weight. The product is computed block by block, so
// that memory stays bounded; the host only queues work until it reads the sums of the pieces.
Result multiply_and_sum(const Sizes& sizes, const ls::Tensor& first, const ls::Tensor& second) {
  const ls::NoGrad no_grad;
  ls::Device& device = first.device();
  const std::int64_t piece = piece_of(sizes),
                     block_rows = kBlockElements / sizes.columns / kRowsTogether * kRowsTogether;
  const ls::Tensor ones = ls::Tensor::full({1, piece}, 1, device);
  const auto run = [&](std::int64_t rows_in_all) {
    std::vector<ls::Tensor> sums_of_pieces;
    for (std::int64_t row = 0; row < rows_in_all; row += block_rows) {
      const std::int64_t rows = std::min(block_rows, rows_in_all - row);
      const std::size_t row_bytes = static_cast<std::size_t>(sizes.inner) * sizeof(float);
      const ls::Buffer part =
          first.buffer().window(static_cast<std::size_t>(row) * row_bytes, static_cast<std::size_t>(rows) * row_bytes);
      const ls::Tensor product = ls::linear(ls::Tensor::wrap(part, {rows, sizes.inner}), second, {});
      sums_of_pieces.push_back(ls::linear(ls::reshape(product, {product.count() / piece, piece}), ones, {}));
    }
    for (ls::Tensor& sums : sums_of_pieces) sums = sums.to(ls::cpu_device());
    device.default_stream().synchronize();
    double sum = 0;
    for (const ls::Tensor& sums : sums_of_pieces)
      for (const float value : sums.span<float>()) sum += value;
    return sum;
  };
  run(std::min(sizes.rows, block_rows));  // in the first call libraries load and choose their kernels
  const auto start = std::chrono::steady_clock::now();
  const double sum = run(sizes.rows);
  return {sum, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

// Throws Error with the reason when there is no GPU.
ls::Device& gpu() {
  const char* const set = std::getenv(ls::env::kDevice);
  const std::string choice = set != nullptr ? set : "auto";
  if (choice == "cpu") throw ls::Error("{}=cpu forbids it", ls::env::kDevice);
  if (choice.empty() || choice == "auto")
    setenv(ls::env::kDevice, "cuda", 1);  // falling back to the CPU would compare nothing
  return ls::local_device(0);
}

// Calls measure() for the CPU and the GPU, as --device says.
template <typename Measure> void measure_on_devices(const std::string& choice, const Measure& measure) {
  if (choice != "cuda") measure(ls::cpu_device());
  if (choice == "cuda") return measure(gpu());
  if (choice != "all") return;
  ls::Device* found = nullptr;
  try {
    found = &gpu();
  } catch (const ls::InvalidArgument&) {
    throw;  // LOCKSTEP_DEVICE=gpu, or the number of a GPU that does not exist
  } catch (const ls::Error& error) {
    std::printf("no GPU: %s\n", error.what());
  }
  if (found != nullptr) measure(*found);
}

// "with tf.device(...): a = tf.constant([[1., 2., 3.], [4., 5., 6.]]); b = ...; c = tf.matmul(a, b)"
void multiply_as_in_the_guide(ls::Device& device) {
  const ls::DeviceScope scope(device);
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  const ls::Tensor a = ls::Tensor::from<float>(numbers, {2, 3}), b = ls::Tensor::from<float>(numbers, {3, 2});
  const ls::Tensor c = ls::matmul(a, b), host = c.to(ls::cpu_device());
  const auto values = host.span<float>();
  std::printf("[[%g %g]\n [%g %g]] on %s\n", static_cast<double>(values[0]), static_cast<double>(values[1]),
              static_cast<double>(values[2]), static_cast<double>(values[3]), c.device().name().c_str());
}

// The sum is added up in float64 and printed with tf.print's nine digits of float32.
int compare_as_in_the_tutorial(const Flags& flags) {
  const Sizes& sizes = flags.sizes;
  multiply_as_in_the_guide(flags.device == "cuda" ? gpu() : ls::cpu_device());
  const ls::Tensor first = tutorials_first(sizes.rows, sizes.inner),
                   second = tutorials_second(sizes.inner, sizes.columns);
  std::printf("%lldx%lld by %lldx%lld, product and its sum; TensorFlow prints %s\n", static_cast<long long>(sizes.rows),
              static_cast<long long>(sizes.inner), static_cast<long long>(sizes.inner),
              static_cast<long long>(sizes.columns), kTutorialsSum);
  bool all_right = true;
  measure_on_devices(flags.device, [&](ls::Device& device) {
    const Result result = multiply_and_sum(sizes, first.to(device), second.to(device));
    const std::string digits = fmt::format("{:.9g}", static_cast<float>(result.sum));
    std::printf("%s: %s in %.1f s\n", device.name().c_str(), digits.c_str(), result.seconds);
    std::fflush(stdout);
    all_right = all_right && digits == kTutorialsSum;
  });
  return all_right ? 0 : 1;
}

int run(int argc, char** argv) {
  Flags flags;
  if (!read_flags(argc, argv, flags)) return 0;
  if (flags.tutorial) return compare_as_in_the_tutorial(flags);
  const Sizes& sizes = flags.sizes;
  const ls::Tensor first = whole_numbers(sizes.rows, sizes.inner, 1),
                   second = whole_numbers(sizes.columns, sizes.inner, 2);
  double expected = 0;
  const std::vector<double> first_sums = column_sums(first), second_sums = column_sums(second);
  for (std::size_t k = 0; k < first_sums.size(); ++k) expected += first_sums[k] * second_sums[k];
  std::printf("%lldx%lld by %lldx%lld, product and its sum; the sum must be %.0f\n", static_cast<long long>(sizes.rows),
              static_cast<long long>(sizes.inner), static_cast<long long>(sizes.inner),
              static_cast<long long>(sizes.columns), expected);
  bool all_right = true;
  measure_on_devices(flags.device, [&](ls::Device& device) {
    const Result result = multiply_and_sum(sizes, first.to(device), second.to(device));
    std::printf("%s: sum %.0f in %.3f s\n", device.name().c_str(), result.sum, result.seconds);
    std::fflush(stdout);
    all_right = all_right && result.sum == expected;
  });
  return all_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("device_matmul", run, argc, argv); }
