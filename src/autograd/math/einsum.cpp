#include "lockstep/autograd/einsum.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// A pattern of `operands` operands, checked.
struct Pattern {
  std::string text, result;
  std::vector<std::string> operands;

  Pattern(std::string_view given, std::size_t count) : text(given) {
    std::string left = text;
    std::erase(left, ' ');
    const std::size_t arrow = left.find("->");
    const bool names_result = arrow != std::string::npos;
    if (names_result) result = left.substr(arrow + 2), left.resize(arrow);
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = left.find(',', begin);
      operands.push_back(left.substr(begin, end - begin));
    }
    if (operands.size() != count) refuse("has {} operands, but {} were given", operands.size(), count);
    for (const std::string& each : operands) check_letters(each, "a diagonal is not supported");
    if (!names_result) result = letters_that_occur_once();
    check_letters(result, "expected each letter once");
    for (const char letter : result)
      if (!std::any_of(operands.begin(), operands.end(), [=](const std::string& each) { return has(each, letter); }))
        refuse("has '{}' in the result and in no operand", letter);
  }

  template <typename... Args> [[noreturn]] void refuse(fmt::format_string<Args...> why, Args&&... args) const {
    throw InvalidArgument("einsum: '{}' {}", text, fmt::format(why, std::forward<Args>(args)...));
  }

  // Notes the extents of an operand's letters.
  void read_extents(std::size_t operand, const Tensor& x, std::map<char, std::int64_t>& extents) const {
    const std::string& letters = operands[operand];
    if (letters.size() != x.shape().dims())
      refuse("has {} letters for operand {}, which is {}", letters.size(), operand, x.shape().text());
    for (std::size_t dim = 0; dim < letters.size(); ++dim) {
      const std::int64_t extent = x.shape()[static_cast<std::int64_t>(dim)];
      const auto [at, is_new] = extents.emplace(letters[dim], extent);
      if (!is_new && at->second != extent)
        refuse("needs equal extents for '{}', got {} and {}", letters[dim], at->second, extent);
    }
  }

 private:
  void check_letters(const std::string& letters, const char* twice) const {
    for (const char letter : letters) {
      if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')))
        refuse("has '{}', expected letters, commas and '->'", letter);
      if (std::count(letters.begin(), letters.end(), letter) > 1)
        refuse("has '{}' twice in '{}': {}", letter, letters, twice);
    }
  }
  std::string letters_that_occur_once() const {
    std::string all, once;
    for (const std::string& each : operands) all += each;
    for (const char letter : all)
      if (std::count(all.begin(), all.end(), letter) == 1) once += letter;
    std::sort(once.begin(), once.end());
    return once;
  }
};

// x, whose dimensions are `from`, with its dimensions in the order `to`.
Tensor in_order(const Tensor& x, const std::string& from, const std::string& to) {
  if (from == to) return x;
  std::vector<int> dims;
  for (const char letter : to) dims.push_back(static_cast<int>(from.find(letter)));
  return permute(x, dims);
}

// Sums the letters that are not in `kept`, and removes them from `letters`.
Tensor sum_others(const Tensor& x, std::string& letters, const std::string& kept) {
  std::vector<int> dims;
  std::string left;
  for (std::size_t dim = 0; dim < letters.size(); ++dim)
    if (has(kept, letters[dim]))
      left += letters[dim];
    else
      dims.push_back(static_cast<int>(dim));
  letters = left;
  return dims.empty() ? x : sum(x, Dims(std::move(dims)));
}

Shape shape_of_letters(const std::string& letters, const std::map<char, std::int64_t>& extents) {
  std::vector<std::int64_t> list;
  for (const char letter : letters) list.push_back(extents.at(letter));
  return Shape(std::span<const std::int64_t>(list));
}

}  // namespace

Tensor einsum(std::string_view text, const Tensor& x) {
  check_activation("einsum", "operand 0", x);
  const Pattern pattern(text, 1);
  std::map<char, std::int64_t> extents;
  pattern.read_extents(0, x, extents);
  std::string letters = pattern.operands[0];
  const Tensor summed = sum_others(x, letters, pattern.result);
  return in_order(summed, letters, pattern.result);
}

// As a product of batches of matrices: a (batch, rows, inner) * b (batch, inner, columns), where letters of both
// operands and the result are batch, those of both operands alone inner, and the others rows or columns.
Tensor einsum(std::string_view text, const Tensor& a, const Tensor& b) {
  check_activation("einsum", "operand 0", a);
  check_activation("einsum", "operand 1", b, kAnyDims, &a.device());
  const Pattern pattern(text, 2);
  std::map<char, std::int64_t> extents;
  pattern.read_extents(0, a, extents), pattern.read_extents(1, b, extents);
  std::string of_a = pattern.operands[0], of_b = pattern.operands[1];
  const Tensor left = sum_others(a, of_a, of_b + pattern.result), right = sum_others(b, of_b, of_a + pattern.result);
  std::string batch, rows, inner, columns;
  for (const char letter : of_a) (!has(of_b, letter) ? rows : has(pattern.result, letter) ? batch : inner) += letter;
  for (const char letter : of_b)
    if (!has(of_a, letter)) columns += letter;
  const bool are_floats = a.dtype() == DType::kFloat32 && b.dtype() == DType::kFloat32;
  // Products of vectors. 16-bit operands stay with matmul(), which sums the products before they are rounded.
  if (rows.empty() && columns.empty() && !inner.empty() && are_floats && AutoCast::active() == DType::kFloat32) {
    const std::string all = batch + inner;
    std::string letters = all;
    const Tensor products = in_order(left, of_a, all) * in_order(right, of_b, all);
    return in_order(sum_others(products, letters, batch), batch, pattern.result);
  }
  const auto count = [&](const std::string& letters) { return shape_of_letters(letters, extents).count(); };
  const Shape of_left = {count(batch), count(rows), count(inner)},
              of_right = {count(batch), count(inner), count(columns)};
  const Tensor product = matmul(reshape(in_order(left, of_a, batch + rows + inner), of_left),
                                reshape(in_order(right, of_b, batch + inner + columns), of_right));
  const std::string letters = batch + rows + columns;
  if (letters.size() > Shape::kMaxDims)
    pattern.refuse("has a result of {} dimensions, expected at most {}", letters.size(), Shape::kMaxDims);
  return in_order(reshape(product, shape_of_letters(letters, extents)), letters, pattern.result);
}

}  // namespace lockstep
