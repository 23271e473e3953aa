// Tensors as the plain memory that collectives work on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/dtype.h"

namespace lockstep::torch_backend {

enum class Access { kRead, kWrite, kReadWrite };

// How the group sees a tensor: its values have `type` in memory, and each is `items` elements of `dtype`.
struct Elements {
  at::ScalarType type = at::kByte;
  DType dtype = DType::kUInt8;
  std::size_t items = 1;
};

// Elements that are only moved: any type, as our type of that name, or as bytes.
Elements moved_elements(at::ScalarType type);

// A tensor of a call. Its memory is the tensor's own where that is contiguous and has the call's type; otherwise a copy
// that prepare() makes and copy_back() writes to the tensor.
class Operand {
 public:
  Operand() = default;  // no tensor
  Operand(at::Tensor tensor, Access access, const Elements& elements)
      : tensor_(std::move(tensor)), access_(access), elements_(elements) {}

  void prepare();    // before the call, in the thread that runs it
  void copy_back();  // after it

  void* data() const { return memory_.defined() ? memory_.data_ptr() : nullptr; }
  std::size_t count() const { return static_cast<std::size_t>(tensor_.numel()) * elements_.items; }
  DType dtype() const { return elements_.dtype; }

 private:
  at::Tensor tensor_, memory_;
  Access access_ = Access::kRead;
  Elements elements_;
};
Operand moved(const at::Tensor& tensor, Access access);

// Tensors as the consecutive parts of one memory: their own, if they lie so, as the chunks of a tensor do; otherwise a
// copy, as with Operand.
class OperandList {
 public:
  OperandList() = default;
  OperandList(std::vector<at::Tensor> tensors, Access access, const Elements& elements);

  void prepare();
  void copy_back();

  void* data() const { return data_; }
  const std::vector<std::size_t>& counts() const { return counts_; }  // elements of each part
  bool are_equal() const;                                             // the counts

 private:
  bool is_one_memory() const;
  at::Tensor part(std::size_t index, std::int64_t begin) const;

  std::vector<at::Tensor> tensors_;
  Access access_ = Access::kRead;
  Elements elements_;
  std::vector<std::size_t> counts_;
  at::Tensor flat_;
  void* data_ = nullptr;
};

// A reduction of tensors of one type: the group's operation, and the type in which it is done.
//   bool: the sum is `or`, the product `and`, as PyTorch adds and multiplies booleans
//   complex: sum, average and premultiplied sum, as pairs of floats
//   int16, uint16, uint32: in the next wider type, which gives the same result modulo the width
//   uint64: as int64, except min and max
// Refuses all others by name (RuntimeError), before the call is counted.
class Reduction {
 public:
  Reduction(const char* call, int rank, const c10d::ReduceOp& op, at::ScalarType type);

  Operand operand(const at::Tensor& tensor, Access access) const { return {tensor, access, elements_}; }
  const Elements& elements() const { return elements_; }
  ReduceOp op() const { return op_; }
  double factor() const { return factor_; }

 private:
  ReduceOp op_ = ReduceOp::kSum;
  double factor_ = 1;
  Elements elements_;
};

// Throws RuntimeError unless the tensor is dense and on the CPU; or, for several, if their types differ.
void check_tensor(const char* call, int rank, const at::Tensor& tensor);
// Throws RuntimeError if elements of the tensor share memory, as those of expand() do: it cannot be an output.
void check_output(const char* call, int rank, const at::Tensor& tensor);
void check_tensors(const char* call, int rank, const std::vector<at::Tensor>& tensors);

}  // namespace lockstep::torch_backend
