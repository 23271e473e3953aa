// Copies that are large enough to be stored past the caches: the same elements as from the plain kernels.
#include <fmt/format.h>

#include <cstring>

#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

// x with its dimensions in the order `dims`.
StridedCopy reordered(const Shape& x, const std::vector<std::size_t>& dims) {
  StridedCopy copy;
  std::vector<Index> extents;
  for (const std::size_t dim : dims) {
    copy.in_strides[extents.size()] = strides_of(x)[dim];
    extents.push_back(x[dim]);
  }
  copy.extents = Shape(std::span<const Index>(extents));
  copy.out_strides = strides_of(copy.extents);
  return copy;
}

TEST(LargeCopies, AreThePlainKernels) {
  const std::vector<std::pair<Shape, std::vector<std::size_t>>> copies = {
      {{1040, 2051}, {1, 0}}, {{3, 704, 1030}, {0, 2, 1}}, {{1001, 2112}, {1, 0}}, {{33, 16, 8, 512}, {0, 2, 1, 3}}};
  for (const auto& [x, dims] : copies) {
    const StridedCopy copy = reordered(x, dims);
    const Floats values = uniform(x.count(), 1);
    const auto result_of = [&, &shape = x](const KernelTable& kernels) {
      // The device's memory begins at a cache line.
      const Buffer result = cpu_device().allocate(values.size() * sizeof(float));
      kernels.copy_strided(copy, in(values, shape), OutputView(result.data(), DType::kFloat32, copy.extents), stream());
      Floats copied(values.size());
      std::memcpy(copied.data(), result.data(), copied.size() * sizeof(float));
      return copied;
    };
    EXPECT_TRUE(result_of(tested()) == result_of(plain())) << x.text();
  }
}

}  // namespace
}  // namespace lockstep::testing
