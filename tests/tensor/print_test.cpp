// Tensors as text.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

std::string text_of(const Tensor& tensor) {
  std::ostringstream text;
  text << tensor;
  return text.str();
}

template <typename T> std::string text_of(const std::vector<T>& values, const Shape& shape) {
  return text_of(Tensor::from<T>(values, shape));
}

// Elements that equal their flat index.
Tensor counted(const Shape& shape) {
  const Tensor tensor = Tensor::empty(shape, DType::kInt32);
  for (std::int32_t next = 0; std::int32_t & value : tensor.span<std::int32_t>()) value = next++;
  return tensor;
}

TEST(PrintedTensor, HasItsRowsBelowEachOther) {
  EXPECT_EQ(text_of(std::vector<float>{1.5F, -2, 0.25F, 10}, {2, 2}),
            "tensor([[ 1.5000, -2.0000],\n"
            "        [ 0.2500, 10.0000]], shape=(2, 2), dtype=float32, device=cpu)");
  EXPECT_EQ(text_of(counted({2, 2, 2})),
            "tensor([[[0, 1],\n"
            "         [2, 3]],\n"
            "\n"
            "        [[4, 5],\n"
            "         [6, 7]]], shape=(2, 2, 2), dtype=int32, device=cpu)");
}

TEST(PrintedTensor, OfAnySizeAndNone) {
  EXPECT_EQ(text_of(Tensor::full({}, 0.5F)), "tensor(0.5000, shape=(), dtype=float32, device=cpu)");
  EXPECT_EQ(text_of(Tensor::zeros({0, 3})), "tensor([], shape=(0, 3), dtype=float32, device=cpu)");
  EXPECT_EQ(text_of(Tensor()), "tensor(undefined)");
}

TEST(PrintedTensor, ChoosesOneNotationForAll) {
  EXPECT_EQ(text_of(std::vector<float>{1, -20}, {2}), "tensor([  1., -20.], shape=(2), dtype=float32, device=cpu)");
  EXPECT_EQ(text_of(std::vector<double>{1e-6, 1}, {2}),
            "tensor([1.0000e-06, 1.0000e+00], shape=(2), dtype=float64, device=cpu)");
  EXPECT_EQ(text_of(std::vector<float>{0, 3e9F}, {2}),
            "tensor([0.0000e+00, 3.0000e+09], shape=(2), dtype=float32, device=cpu)");
  EXPECT_EQ(text_of(std::vector<float>{NAN, -NAN, INFINITY, -INFINITY, 1.5F}, {5}),
            "tensor([   nan,    nan,    inf,   -inf, 1.5000], shape=(5), dtype=float32, device=cpu)");
  EXPECT_EQ(text_of(std::vector<float>{NAN}, {1}), "tensor([nan], shape=(1), dtype=float32, device=cpu)");
}

TEST(PrintedTensor, OfEveryType) {
  EXPECT_EQ(text_of(std::vector<std::int64_t>{INT64_MIN, INT64_MAX}, {2}),
            "tensor([-9223372036854775808,  9223372036854775807], shape=(2), dtype=int64, device=cpu)");
  EXPECT_EQ(text_of(std::vector<std::int8_t>{-128, 65}, {2}),
            "tensor([-128,   65], shape=(2), dtype=int8, device=cpu)");
  EXPECT_EQ(text_of(std::vector<std::uint8_t>{255, 65}, {2}), "tensor([255,  65], shape=(2), dtype=uint8, device=cpu)");
  const auto from_bits = [](DType type, std::array<std::uint16_t, 2> bits) {
    const Tensor tensor = Tensor::empty({2}, type);
    std::copy(bits.begin(), bits.end(), reinterpret_cast<std::uint16_t*>(tensor.buffer().data()));
    return text_of(tensor);
  };
  EXPECT_EQ(from_bits(DType::kFloat16, {0x3e00, 0xfc00}),
            "tensor([1.5000,   -inf], shape=(2), dtype=float16, device=cpu)");
  EXPECT_EQ(from_bits(DType::kBFloat16, {0x3fc0, 0xbf80}),
            "tensor([ 1.5000, -1.0000], shape=(2), dtype=bfloat16, device=cpu)");
}

TEST(PrintedTensor, OfMoreThanAThousandElementsShowsTheEdges) {
  EXPECT_EQ(text_of(counted({1001})),
            "tensor([   0,    1,    2, ...,  998,  999, 1000], shape=(1001), dtype=int32, device=cpu)");
  EXPECT_EQ(text_of(counted({4, 400})),
            "tensor([[   0,    1,    2, ...,  397,  398,  399],\n"
            "        [ 400,  401,  402, ...,  797,  798,  799],\n"
            "        [ 800,  801,  802, ..., 1197, 1198, 1199],\n"
            "        [1200, 1201, 1202, ..., 1597, 1598, 1599]], shape=(4, 400), dtype=int32, device=cpu)");
  EXPECT_EQ(text_of(counted({600, 2})),
            "tensor([[   0,    1],\n"
            "        [   2,    3],\n"
            "        [   4,    5],\n"
            "        ...,\n"
            "        [1194, 1195],\n"
            "        [1196, 1197],\n"
            "        [1198, 1199]], shape=(600, 2), dtype=int32, device=cpu)");
}

TEST(PrintedTensor, IsBoundedInSizeAndWidth) {
  for (const Shape& shape :
       {Shape{1000}, Shape{10, 100}, Shape{8, 8, 8, 8}, Shape{7, 7, 7, 7, 7, 7}, Shape{2, 2, 2, 2, 2, 200}}) {
    const std::string text = text_of(counted(shape));
    const std::string values = text.substr(0, text.find(", shape="));
    EXPECT_LE(std::count(values.begin(), values.end(), ','), 1500) << shape.text();  // 1000 elements, and dots
    std::istringstream lines(values);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 90u) << shape.text();
  }
  EXPECT_EQ(text_of(counted({1000})).find("..."), std::string::npos);
}

}  // namespace
}  // namespace lockstep
