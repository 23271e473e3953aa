// Prints tensors in PyTorch's format: numbers of equal width, in rows of at most 80 columns; large tensors are
// abbreviated to their edges.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"
#include "src/core/base/half.h"

namespace lockstep {

namespace {

constexpr std::int64_t kMostInFull = 1000;  // elements
constexpr std::size_t kColumns = 80;
constexpr const char* kOpening = "tensor(";

double value_at(const Tensor& host, std::int64_t at) {
  const std::byte* data = host.buffer().data();
  switch (host.dtype()) {
    case DType::kFloat32: return reinterpret_cast<const float*>(data)[at];
    case DType::kFloat64: return reinterpret_cast<const double*>(data)[at];
    case DType::kFloat16: return widen(reinterpret_cast<const Float16*>(data)[at]);
    case DType::kBFloat16: return widen(reinterpret_cast<const BFloat16*>(data)[at]);
    default: return 0;
  }
}

// For integer types.
std::int64_t integer_at(const Tensor& host, std::int64_t at) {
  const std::byte* data = host.buffer().data();
  switch (host.dtype()) {
    case DType::kInt8: return reinterpret_cast<const std::int8_t*>(data)[at];
    case DType::kUInt8: return reinterpret_cast<const std::uint8_t*>(data)[at];
    case DType::kInt32: return reinterpret_cast<const std::int32_t*>(data)[at];
    case DType::kInt64: return reinterpret_cast<const std::int64_t*>(data)[at];
    default: return 0;
  }
}

bool is_floating(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat64 || type == DType::kFloat16 || type == DType::kBFloat16;
}

// One notation for all elements: "3." if all are integers, "3.1416" if four digits distinguish them, else "3.1416e+00".
enum class Notation { kInteger, kFixed, kScientific };

Notation notation_for(const std::vector<double>& values) {
  bool integers = true;
  double least = HUGE_VAL, most = 0;  // magnitudes, of finite elements other than 0
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    integers = integers && value == std::trunc(value);
    if (value == 0) continue;
    least = std::min(least, std::abs(value));
    most = std::max(most, std::abs(value));
  }
  if (most > 1e8) return Notation::kScientific;
  if (integers) return Notation::kInteger;
  return most / least > 1000 || least < 1e-4 ? Notation::kScientific : Notation::kFixed;
}

std::string text_of(double value, Notation notation) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (notation == Notation::kInteger) return fmt::format("{:.0f}.", value);
  return notation == Notation::kFixed ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
}

// The number of rows, columns, ... shown at each end of a tensor that is too large: three, or fewer if that would be
// too many elements.
std::int64_t edge_of(const Shape& shape) {
  for (std::int64_t edge = 3; edge > 1; --edge) {
    std::int64_t shown = 1;
    for (const std::int64_t extent : shape.extents()) shown *= std::min(extent, 2 * edge);
    if (shown <= kMostInFull) return edge;
  }
  return 1;
}

class Printer {
 public:
  explicit Printer(const Tensor& host)
      : host_(host), shape_(host.shape()), edge_(host.count() > kMostInFull ? edge_of(shape_) : host.count()) {
    std::vector<std::int64_t> offsets;
    visit(0, 0, offsets);
    std::vector<double> values;
    if (is_floating(host_.dtype()))
      for (const std::int64_t at : offsets) values.push_back(value_at(host_, at));
    notation_ = notation_for(values);
    for (const std::int64_t at : offsets) width_ = std::max(width_, number(at).size());
  }

  // The text of the elements from `offset` on, for the dimensions from `dim` on. A line break is followed by `indent`
  // spaces.
  std::string text(std::size_t dim, std::int64_t offset, std::size_t indent) const {
    if (dim == shape_.dims()) return fmt::format("{:>{}}", number(offset), width_);
    return "[" + (dim + 1 == shape_.dims() ? row(offset, indent + 1) : blocks(dim, offset, indent + 1)) + "]";
  }

 private:
  std::string number(std::int64_t at) const {
    return is_floating(host_.dtype()) ? text_of(value_at(host_, at), notation_)
                                      : fmt::format("{}", integer_at(host_, at));
  }

  bool is_cut(std::size_t dim) const { return shape_[dim] > 2 * edge_; }
  // The index that is shown after `i`.
  std::int64_t next(std::size_t dim, std::int64_t i) const {
    return is_cut(dim) && i + 1 == edge_ ? shape_[dim] - edge_ : i + 1;
  }

  std::int64_t stride(std::size_t dim) const {
    std::int64_t elements = 1;
    for (std::size_t inner = dim + 1; inner < shape_.dims(); ++inner) elements *= shape_[inner];
    return elements;
  }

  void visit(std::size_t dim, std::int64_t offset, std::vector<std::int64_t>& offsets) const {
    if (dim == shape_.dims()) {
      offsets.push_back(offset);
      return;
    }
    for (std::int64_t i = 0; i < shape_[dim]; i = next(dim, i)) visit(dim + 1, offset + i * stride(dim), offsets);
  }

  std::string row(std::int64_t offset, std::size_t indent) const {
    const std::size_t dim = shape_.dims() - 1;
    const std::size_t a_line = kColumns > indent + width_ + 2 ? (kColumns - indent) / (width_ + 2) : 1;
    std::string line;
    std::size_t count = 0;
    const auto append = [&](const std::string& cell) {
      if (count != 0) line += count % a_line == 0 ? ",\n" + std::string(indent, ' ') : ", ";
      line += cell;
      ++count;
    };
    for (std::int64_t i = 0; i < shape_[dim]; i = next(dim, i)) {
      append(text(dim + 1, offset + i, indent));
      if (is_cut(dim) && i + 1 == edge_) append("...");
    }
    return line;
  }

  // One block below the other, with one more empty line for each outer dimension.
  std::string blocks(std::size_t dim, std::int64_t offset, std::size_t indent) const {
    const std::string separator = "," + std::string(shape_.dims() - dim - 1, '\n') + std::string(indent, ' ');
    std::string text_of_all;
    for (std::int64_t i = 0; i < shape_[dim]; i = next(dim, i)) {
      text_of_all += (i == 0 ? "" : separator) + text(dim + 1, offset + i * stride(dim), indent);
      if (is_cut(dim) && i + 1 == edge_) text_of_all += separator + "...";
    }
    return text_of_all;
  }

  const Tensor host_;
  const Shape shape_;
  const std::int64_t edge_;
  Notation notation_ = Notation::kInteger;
  std::size_t width_ = 0;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << kOpening << "undefined)";
  const Tensor host = tensor.to(cpu_device());
  out << kOpening << (host.count() == 0 ? "[]" : Printer(host).text(0, 0, std::string_view(kOpening).size()));
  return out << ", shape=" << tensor.shape().text() << ", dtype=" << name_of(tensor.dtype())
             << ", device=" << tensor.device().name() << ")";
}

}  // namespace lockstep
