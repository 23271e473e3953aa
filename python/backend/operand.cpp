#include "python/backend/operand.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>

#include "python/backend/errors.h"

namespace lockstep::torch_backend {

namespace {

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::kFloat32;
    case at::kDouble: return DType::kFloat64;
    case at::kHalf: return DType::kFloat16;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kChar: return DType::kInt8;
    case at::kByte: return DType::kUInt8;
    case at::kInt: return DType::kInt32;
    case at::kLong: return DType::kInt64;
    default: return std::nullopt;
  }
}

bool is_plain(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

std::string layout_name(at::Layout layout) {
  std::ostringstream text;
  text << layout;
  return text.str();
}

const char* name_of_op(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(kNames) ? kNames[op] : "an unknown reduction";
}

ReduceOp plain_op(c10d::ReduceOp::RedOpType op) {
  static constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,    ReduceOp::kProduct,
                                      ReduceOp::kMin,   ReduceOp::kMax,    ReduceOp::kBitAnd,
                                      ReduceOp::kBitOr, ReduceOp::kBitXor, ReduceOp::kPremulSum};
  return kOps[op];
}

// On booleans, which are bytes 0 and 1.
ReduceOp op_on_booleans(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND: return ReduceOp::kMin;
    case c10d::ReduceOp::BXOR: return ReduceOp::kBitXor;
    default: return ReduceOp::kMax;
  }
}

double factor_of(const c10d::ReduceOp& op) {
  const auto* const supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) return 1;
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

// The type in which integers that we lack are reduced.
std::optional<at::ScalarType> wider(at::ScalarType type) {
  switch (type) {
    case at::kShort:
    case at::kUInt16: return at::kInt;
    case at::kUInt32:
    case at::kUInt64: return at::kLong;
    default: return std::nullopt;
  }
}

}  // namespace

void Operand::prepare() {
  if (!tensor_.defined() || memory_.defined()) return;
  if (is_plain(tensor_, elements_.type)) {
    memory_ = tensor_;
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  memory_ =
      at::empty(tensor_.sizes(), tensor_.options().dtype(elements_.type).memory_format(at::MemoryFormat::Contiguous));
  if (access_ != Access::kWrite) memory_.copy_(tensor_);
}

void Operand::copy_back() {
  if (!tensor_.defined() || memory_.is_same(tensor_) || access_ == Access::kRead) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  tensor_.copy_(memory_);
}

Elements moved_elements(at::ScalarType type) {
  if (const auto dtype = dtype_of(type)) return {type, *dtype, 1};
  return {type, DType::kUInt8, c10::elementSize(type)};
}

Operand moved(const at::Tensor& tensor, Access access) {
  return {tensor, access, moved_elements(tensor.scalar_type())};
}

Reduction::Reduction(const char* call, int rank, const c10d::ReduceOp& op, at::ScalarType type) {
  const auto refuse_type = [&](const std::string& why) {
    refuse(call, rank,
           std::string(name_of_op(op.op_)) + " of " + c10::toString(type) + " tensors is not possible: " + why);
  };
  const auto kind = op.op_;
  if (kind > c10d::ReduceOp::PREMUL_SUM)
    refuse_type("lockstep has SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR and PREMUL_SUM");
  const bool is_bitwise = kind == c10d::ReduceOp::BAND || kind == c10d::ReduceOp::BOR || kind == c10d::ReduceOp::BXOR;
  const bool divides = kind == c10d::ReduceOp::AVG || kind == c10d::ReduceOp::PREMUL_SUM;
  if (at::isIntegralType(type, /*includeBool=*/true) && divides)
    refuse_type("it is defined for floating point; use SUM, and divide afterwards");
  if (!at::isIntegralType(type, true) && is_bitwise) refuse_type("it is defined for integers");
  elements_.type = type;
  op_ = plain_op(kind);
  factor_ = factor_of(op);
  if (type == at::kBool) {
    op_ = op_on_booleans(kind);
    elements_.dtype = DType::kUInt8;
  } else if (at::isComplexType(type)) {
    if (kind != c10d::ReduceOp::SUM && !divides) refuse_type("complex numbers have SUM, AVG and PREMUL_SUM");
    if (type == at::kComplexHalf) refuse_type("use complex64");
    elements_.dtype = type == at::kComplexDouble ? DType::kFloat64 : DType::kFloat32;
    elements_.items = 2;
  } else if (const auto wide = wider(type)) {
    if (type == at::kUInt64 && (kind == c10d::ReduceOp::MIN || kind == c10d::ReduceOp::MAX))
      refuse_type("lockstep has no type of 64 bits without a sign; use int64");
    elements_.type = *wide;
    elements_.dtype = *dtype_of(*wide);
  } else if (const auto dtype = dtype_of(type)) {
    elements_.dtype = *dtype;
  } else {
    refuse_type("lockstep adds float32, float64, float16, bfloat16, complex, bool and integers; convert the tensor");
  }
}

// Empty tensors have no place of their own.
bool OperandList::is_one_memory() const {
  const char* next = nullptr;
  for (const at::Tensor& tensor : tensors_) {
    if (!is_plain(tensor, elements_.type)) return false;
    if (tensor.numel() == 0) continue;
    const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
    if (next != nullptr && data != next) return false;
    next = data + tensor.nbytes();
  }
  return true;
}

OperandList::OperandList(std::vector<at::Tensor> tensors, Access access, const Elements& elements)
    : tensors_(std::move(tensors)), access_(access), elements_(elements) {
  for (const at::Tensor& tensor : tensors_)
    counts_.push_back(static_cast<std::size_t>(tensor.numel()) * elements.items);
}

bool OperandList::are_equal() const {
  return std::all_of(counts_.begin(), counts_.end(), [this](std::size_t count) { return count == counts_[0]; });
}

at::Tensor OperandList::part(std::size_t index, std::int64_t begin) const {
  return flat_.narrow(0, begin, tensors_[index].numel()).view(tensors_[index].sizes());
}

void OperandList::prepare() {
  if (tensors_.empty()) return;
  if (is_one_memory()) {
    const auto first =
        std::find_if(tensors_.begin(), tensors_.end(), [](const auto& each) { return each.numel() > 0; });
    data_ = first == tensors_.end() ? nullptr : first->data_ptr();
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors_) count += tensor.numel();
  flat_ = at::empty({count}, tensors_[0].options().dtype(elements_.type).memory_format(at::MemoryFormat::Contiguous));
  data_ = flat_.data_ptr();
  if (access_ == Access::kWrite) return;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < tensors_.size(); begin += tensors_[i++].numel()) part(i, begin).copy_(tensors_[i]);
}

void OperandList::copy_back() {
  if (!flat_.defined() || access_ == Access::kRead) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < tensors_.size(); begin += tensors_[i++].numel()) tensors_[i].copy_(part(i, begin));
}

void check_tensor(const char* call, int rank, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse(call, rank, "got an undefined tensor");
  if (!tensor.device().is_cpu())
    refuse(call, rank,
           "got a tensor on " + tensor.device().str() +
               ", but the lockstep backend serves CPU tensors, and NCCL those on GPUs, if this PyTorch has NCCL; "
               "copy the tensor to the CPU");
  if (tensor.layout() != at::kStrided || tensor.is_nested())
    refuse(call, rank,
           "got a tensor of the layout " + (tensor.is_nested() ? std::string("nested") : layout_name(tensor.layout())) +
               ", but the lockstep backend serves dense tensors; call to_dense(), or use values()");
}

void check_output(const char* call, int rank, const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    refuse(call, rank, "got an output whose elements share memory, as those of expand() do; call contiguous() first");
}

void check_tensors(const char* call, int rank, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) refuse(call, rank, "got no tensors");
  for (const at::Tensor& tensor : tensors) {
    check_tensor(call, rank, tensor);
    if (tensor.scalar_type() != tensors[0].scalar_type())
      refuse(call, rank,
             std::string("got tensors of the types ") + c10::toString(tensors[0].scalar_type()) + " and " +
                 c10::toString(tensor.scalar_type()) + "; the tensors of one call have one type");
  }
}

}  // namespace lockstep::torch_backend
