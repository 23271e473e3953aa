// The arrays of one call of a kernel, on a device, in the type under test. Cases only use this class; comparison tests
// put guards around the arrays, benchmarks do not.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/cases/values.h"
#include "lockstep/core/device.h"

namespace lockstep::testing {

enum class Place { kAligned, kOneElementOff };

// Arrays live as long as their bench.
class Bench {
 public:
  // `type`: float32, float16 or bfloat16.
  Bench(Device& device, const KernelTable& kernels, DType type) : kernels(kernels), type(type), device_(device) {}
  virtual ~Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const KernelTable& kernels;
  const DType type;
  Stream& stream() { return device_.default_stream(); }

  // An operand of any float type, to which `values` are rounded; there are as many as the shape has elements.
  InputView in_of(DType of, const Shape& shape, Floats values, Place place = Place::kAligned);
  OutputView out_of(DType of, const Shape& shape, Floats initial, bool accumulate = false,
                    Place place = Place::kAligned);

  // An operand of the type under test.
  InputView in(const Shape& shape, Floats values, Place place = Place::kAligned) {
    return in_of(type, shape, std::move(values), place);
  }
  OutputView out(const Shape& shape, Floats initial, bool accumulate = false, Place place = Place::kAligned) {
    return out_of(type, shape, std::move(initial), accumulate, place);
  }
  // A float32 operand, whatever the type under test: gradients of parameters, losses, and values that backward needs in
  // full precision.
  InputView floats_in(const Shape& shape, Floats values, Place place = Place::kAligned) {
    return in_of(DType::kFloat32, shape, std::move(values), place);
  }
  OutputView floats_out(const Shape& shape, Floats initial, bool accumulate = false, Place place = Place::kAligned) {
    return out_of(DType::kFloat32, shape, std::move(initial), accumulate, place);
  }

  // An operand that is not a float.
  template <typename T> const T* plain_in(const std::vector<T>& values) {
    return reinterpret_cast<const T*>(add(bytes_of(values), sizeof(T), Place::kAligned, {}));
  }
  template <typename T> T* plain_out(const std::vector<T>& initial) {
    return reinterpret_cast<T*>(
        add(bytes_of(initial), sizeof(T), Place::kAligned, [](const std::byte* bytes, Index count) {
          const auto* const elements = reinterpret_cast<const T*>(bytes);
          return Floats(elements, elements + count);
        }));
  }
  InputView labels_in(const std::vector<std::int64_t>& labels) {
    return {plain_in(labels), {static_cast<Index>(labels.size())}};
  }

 protected:
  using Bytes = std::vector<std::byte>;
  using Read = std::function<Floats(const std::byte*, Index)>;  // returns elements as float32; empty for an input

  virtual std::byte* add(const Bytes& bytes, std::size_t element_bytes, Place place, Read read) = 0;
  virtual Floats chosen(Floats values) const { return values; }

  Device& device_;

 private:
  template <typename T> static Bytes bytes_of(const std::vector<T>& values) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return Bytes(bytes, bytes + values.size() * sizeof(T));
  }
};

}  // namespace lockstep::testing
