#include "bench/lib/test_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"
#include "src/core/base/half.h"

namespace lockstep::bench {

namespace {

constexpr std::size_t kPeriod = 509;  // prime
constexpr int kScribble = 0xEE;  // no result has this in all bytes, because exact values are small and not negative
constexpr std::uint64_t kRoughSeed = 977;  // arbitrary

template <typename T> void put(std::byte* at, T value) { std::memcpy(at, &value, sizeof(value)); }

// Integers wrap, floating point rounds to nearest: `value` is exact in double.
void encode(DType dtype, double value, std::byte* at) {
  switch (dtype) {
    case DType::kFloat32: return put(at, static_cast<float>(value));
    case DType::kFloat64: return put(at, value);
    case DType::kFloat16: return put(at, narrow_float16(static_cast<float>(value)).bits);
    case DType::kBFloat16: return put(at, narrow_bfloat16(static_cast<float>(value)).bits);
    case DType::kInt8:
    case DType::kUInt8: return put(at, static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
    case DType::kInt32: return put(at, static_cast<std::int32_t>(value));
    case DType::kInt64: return put(at, static_cast<std::int64_t>(value));
  }
}

struct Point {
  int rank, part;
  std::int64_t index;
};

// The value of rank `at.rank` in element `at.index` of its part `at.part`.
std::int64_t input(const CollectiveKind& kind, ReduceOp op, int ranks, const Point& at) {
  const std::int64_t mixed = at.index * 7 + at.rank * 13 + at.part * 29;
  if (!kind.reduces) return mixed % 101;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return mixed % std::clamp(120 / ranks, 2, 11);  // the sum over few ranks fits into an int8
    case ReduceOp::kProduct: return (at.index + at.part) % ranks == at.rank ? 1 + mixed % 3 : 1;
    default: return mixed % 120;
  }
}

std::int64_t combine(ReduceOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kBitAnd: return a & b;
    case ReduceOp::kBitOr: return a | b;
    case ReduceOp::kBitXor: return a ^ b;
    default: return a + b;
  }
}

// avg: the sum times 1 / ranks in the accumulation type.
double average(DType dtype, std::int64_t sum, int ranks) {
  if (dtype == DType::kFloat64) return static_cast<double>(sum) * (1.0 / ranks);
  return static_cast<double>(static_cast<float>(sum) * (1.0F / static_cast<float>(ranks)));
}

template <typename ValueAt> Block make_block(const MessageLayout& layout, DType dtype, const ValueAt& value_at) {
  const std::size_t elements = std::min(layout.count, kPeriod);
  Block block(elements * size_of(dtype));
  for (std::size_t i = 0; i < elements; ++i)
    encode(dtype, value_at(static_cast<std::int64_t>(i)), block.data() + i * size_of(dtype));
  return block;
}

double rough_value(DType dtype, const Point& at) {
  std::uint64_t bits = kRoughSeed + static_cast<std::uint64_t>(at.rank) * 0x9E3779B97F4A7C15u +
                       static_cast<std::uint64_t>(at.part) * 0xC2B2AE3D27D4EB4Fu +
                       static_cast<std::uint64_t>(at.index) * 0x165667B19E3779F9u;
  bits ^= bits >> 29;
  bits *= 0xBF58476D1CE4E5B9u;
  bits ^= bits >> 32;
  const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
  const bool floating =
      dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  return floating ? 2 * unit - 1 : static_cast<double>(static_cast<std::int64_t>(unit * 127));
}

void fill_part(std::byte* part, std::size_t bytes, const Block& block) {
  for (std::size_t at = 0; at < bytes; at += block.size())
    std::memcpy(part + at, block.data(), std::min(block.size(), bytes - at));
}

std::size_t wrong_elements(const std::byte* got, const std::byte* expected, std::size_t bytes, std::size_t element) {
  if (std::memcmp(got, expected, bytes) == 0) return 0;
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < bytes; at += element)
    wrong += std::memcmp(got + at, expected + at, element) != 0 ? 1 : 0;
  return wrong;
}

// Without `full`, checks only the first and the last block.
std::size_t wrong_in_part(const std::byte* part, std::size_t bytes, const Block& block, std::size_t element,
                          bool full) {
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < bytes; at += block.size())
    if (full || at == 0 || bytes - at <= block.size())
      wrong += wrong_elements(part + at, block.data(), std::min(block.size(), bytes - at), element);
  return wrong;
}

}  // namespace

double premul_factor(int rank) { return rank % 2 == 0 ? 1 : 2; }

TestData::TestData(const CollectiveKind& kind, const MessageLayout& layout, const Call& call, int rank)
    : kind_(kind), layout_(layout), call_(call), rank_(rank) {
  for (int part = 0; part < layout.send_parts && sends(); ++part) {
    exact_.push_back(make_block(layout, call.dtype, [&](std::int64_t i) {
      return static_cast<double>(input(kind_, call_.op, layout_.ranks, {rank_, part, i}));
    }));
    rough_.push_back(make_block(layout, call.dtype, [&](std::int64_t i) {
      return rough_value(call_.dtype, {rank_, part, i});
    }));
  }
  // Part p of this rank's result comes from rank p (or the root, or the even rank of its pair); it was the sender's
  // part for this rank, if the sender had several.
  for (int part = 0; part < layout.receive_parts && receives(); ++part)
    expected_.push_back(make_block(layout, call.dtype, [&](std::int64_t i) { return result(part, i); }));
}

double TestData::result(int part, std::int64_t index) const {
  const int wanted_part = layout_.send_parts > 1 ? rank_ : 0;
  const auto given = [&](int rank) {
    const std::int64_t factor =
        kind_.reduces && call_.op == ReduceOp::kPremulSum ? std::llround(premul_factor(rank)) : 1;
    return factor * input(kind_, call_.op, layout_.ranks, {rank, wanted_part, index});
  };
  if (!kind_.reduces)
    return static_cast<double>(given(kind_.pairs ? rank_ & ~1 : layout_.receive_parts > 1 ? part : call_.root));
  std::int64_t reduced = given(0);
  for (int rank = 1; rank < layout_.ranks; ++rank) reduced = combine(call_.op, reduced, given(rank));
  return call_.op == ReduceOp::kAvg ? average(call_.dtype, reduced, layout_.ranks) : static_cast<double>(reduced);
}

void TestData::fill(const Memory& memory, Values values) const {
  if (!kind_.moves_data()) return;
  const Memory ends = ends_of(layout_, memory, rank_);
  const bool whole_is_input = sends() && layout_.in_place && layout_.send_parts >= layout_.receive_parts;
  if (!whole_is_input) {
    if (layout_.in_place)
      std::memset(memory.receive, kScribble, layout_.message_bytes());
    else
      std::memset(ends.receive, kScribble, layout_.receive_bytes());
  }
  const std::vector<Block>& blocks = values == Values::kExact ? exact_ : rough_;
  for (std::size_t part = 0; part < blocks.size(); ++part)
    fill_part(ends.send + part * layout_.part_bytes, layout_.part_bytes, blocks[part]);
}

std::size_t TestData::count_wrong(const Memory& memory, bool full) const {
  const Memory ends = ends_of(layout_, memory, rank_);
  std::size_t wrong = 0;
  for (std::size_t part = 0; part < expected_.size(); ++part)
    wrong += wrong_in_part(ends.receive + part * layout_.part_bytes, layout_.part_bytes, expected_[part],
                           size_of(call_.dtype), full);
  return wrong;
}

std::string TestData::hash_result(const Memory& memory) const {
  if (!receives()) return "";
  return crypto::hex(crypto::sha256({ends_of(layout_, memory, rank_).receive, layout_.receive_bytes()}));
}

}  // namespace lockstep::bench
