#include "src/comm/operation/composite.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/core/base/half.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

// A larger message gains nothing from packing; smaller ones are packed up to a size at which bandwidth counts.
constexpr std::size_t kPackedAlone = 32 * 1024;
constexpr std::size_t kBatchBytes = 256 * 1024;

template <typename T> void scale_plain(const std::byte* in, std::byte* out, std::size_t count, double factor) {
  const T by = static_cast<T>(factor);
  for (std::size_t i = 0; i < count; ++i) reinterpret_cast<T*>(out)[i] = reinterpret_cast<const T*>(in)[i] * by;
}

template <typename T, typename Narrow>
void scale_half(const std::byte* in, std::byte* out, std::size_t count, double factor, Narrow&& narrow) {
  const auto by = static_cast<float>(factor);
  for (std::size_t i = 0; i < count; ++i)
    reinterpret_cast<T*>(out)[i] = narrow(widen(reinterpret_cast<const T*>(in)[i]) * by);
}

// The remaining time of the operation; at least a millisecond, so that the last call fails under its own name.
class RemainingTime {
 public:
  explicit RemainingTime(const Operation& operation) : end_(Clock::now() + operation.timeout) {}
  std::chrono::milliseconds rest() const {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()),
                    std::chrono::milliseconds(1));
  }

 private:
  Clock::time_point end_;
};

}  // namespace

void scale(DType dtype, const std::byte* in, std::byte* out, std::size_t count, double factor) {
  switch (dtype) {
    case DType::kFloat32: return scale_plain<float>(in, out, count, factor);
    case DType::kFloat64: return scale_plain<double>(in, out, count, factor);
    case DType::kFloat16:
      return scale_half<Float16>(in, out, count, factor, [](float value) { return narrow_float16(value); });
    case DType::kBFloat16:
      return scale_half<BFloat16>(in, out, count, factor, [](float value) { return narrow_bfloat16(value); });
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt32:
    case DType::kInt64: break;
  }
  LOCKSTEP_CHECK(false, "cannot scale {}", name_of(dtype));
}

void CompositeCalls::run(const Operation& operation, const Execute& execute) {
  if (operation.layout && !operation.layout->regions.empty()) return run_coalesced(operation, execute);
  run_premultiplied(operation, execute);
}

// The multiplied values are stored where the result will be, or in a scratch buffer if that must not be written.
void CompositeCalls::run_premultiplied(const Operation& operation, const Execute& execute) {
  const Signature& call = operation.signature;
  const auto ranks = static_cast<std::size_t>(place_.world_size);
  const std::size_t count = call.kind == OperationKind::kReduceScatter ? call.count * ranks : call.count;
  const bool has_room =
      call.kind == OperationKind::kAllReduce || (call.kind == OperationKind::kReduce && call.root == place_.rank);
  if (!has_room) scaled_.resize(std::max(scaled_.size(), count * size_of(call.dtype)));
  auto* const out = has_room ? static_cast<std::byte*>(operation.receive) : scaled_.data();
  scale(call.dtype, static_cast<const std::byte*>(operation.send), out, count, operation.factor);
  Operation plain = operation;
  plain.send = out;
  execute(plain);
}

void CompositeCalls::run_coalesced(const Operation& operation, const Execute& execute) {
  const RemainingTime deadline(operation);
  const auto& regions = operation.layout->regions;
  const std::size_t element = size_of(operation.signature.dtype);
  const bool is_premultiplied = operation.signature.op == ReduceOp::kPremulSum;
  const bool all_give = operation.signature.kind != OperationKind::kBroadcast;
  Operation plain = operation;
  const auto execute_on = [&](std::byte* data, std::size_t count) {
    if (is_premultiplied) scale(plain.signature.dtype, data, data, count, operation.factor);
    plain.send = plain.receive = data;
    plain.signature.count = count;
    plain.timeout = deadline.rest();
    execute(plain);
  };
  for (std::size_t first = 0; first < regions.size();) {
    std::size_t last = first, bytes = 0;
    while (last < regions.size() && regions[last].count * element <= kPackedAlone &&
           bytes + regions[last].count * element <= kBatchBytes)
      bytes += regions[last++].count * element;
    if (last - first <= 1) {  // large, or alone: in place
      execute_on(static_cast<std::byte*>(regions[first].data), regions[first].count);
      ++first;
      continue;
    }
    packed_.resize(std::max(packed_.size(), bytes));
    const auto each = [&](auto&& copy) {
      std::size_t at = 0;
      for (std::size_t i = first; i < last; at += regions[i++].count * element)
        if (regions[i].count != 0) copy(packed_.data() + at, regions[i].data, regions[i].count * element);
    };
    if (all_give || operation.signature.root == place_.rank)
      each([](std::byte* packed, void* data, std::size_t size) { std::memcpy(packed, data, size); });
    execute_on(packed_.data(), bytes / element);
    each([](std::byte* packed, void* data, std::size_t size) { std::memcpy(data, packed, size); });
    first = last;
  }
}

}  // namespace lockstep
