#include "kernels/cuda/product.h"

#include <memory>
#include <utility>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/plan_cache.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

namespace {

cudaDataType_t cuda_type(DType type) {
  switch (type) {
    case DType::kFloat32: return CUDA_R_32F;
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kBFloat16: return CUDA_R_16BF;
    default: throw_no_float(type);
  }
}

struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DestroyDescriptor {
  void operator()(cublasLtMatmulDesc_t descriptor) const { cublasLtMatmulDescDestroy(descriptor); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const { cublasLtMatmulPreferenceDestroy(preference); }
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, DestroyLayout>;
using Descriptor = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, DestroyDescriptor>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, DestroyPreference>;

Layout make_layout(DType type, cublasOperation_t op, Index rows, Index columns, Index batch) {
  const bool plain = op == CUBLAS_OP_N;
  const auto stored_rows = static_cast<std::uint64_t>(plain ? rows : columns),
             stored_columns = static_cast<std::uint64_t>(plain ? columns : rows);
  cublasLtMatrixLayout_t layout = nullptr;
  LOCKSTEP_CUBLAS(cublasLtMatrixLayoutCreate(&layout, cuda_type(type), stored_rows, stored_columns,
                                             static_cast<std::int64_t>(stored_rows)));
  Layout owned(layout);
  if (batch == 1) return owned;
  const auto matrices = static_cast<std::int32_t>(batch);
  const auto distance = static_cast<std::int64_t>(stored_rows * stored_columns);
  LOCKSTEP_CUBLAS(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices, sizeof matrices));
  LOCKSTEP_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance,
                                                   sizeof distance));
  return owned;
}

template <typename T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  LOCKSTEP_CUBLAS(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof value));
}

// A product and cuBLASLt's best algorithm for it, which is queried once per shape.
class Plan {
 public:
  // `extras` are an example: their presence and alignment may influence the choice.
  Plan(const CublasProduct& product, const ProductExtras& extras)
      : a_(make_layout(product.in, product.a_op, product.m, product.k, product.batch)),
        b_(make_layout(product.in, product.b_op, product.k, product.n, product.batch)),
        d_(make_layout(product.out, CUBLAS_OP_N, product.m, product.n, product.batch)),
        beta_(product.accumulate ? 1.0F : 0.0F) {
    const bool tf32 = math_settings().tf32_products && product.in == DType::kFloat32;
    cublasLtMatmulDesc_t descriptor = nullptr;
    LOCKSTEP_CUBLAS(
        cublasLtMatmulDescCreate(&descriptor, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    descriptor_.reset(descriptor);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, product.a_op);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, product.b_op);
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
    if (product.epilogue == CUBLASLT_EPILOGUE_BGRADB) set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    if (extras.matrix != nullptr) set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{product.m});
    set_extras(extras);
    known_ = choose(product);
  }

  bool known() const { return known_; }

  void run(const void* a, const void* b, const ProductExtras& extras, void* d, Stream& stream) {
    set_extras(extras);
    const float alpha = 1;
    const Scratch workspace(stream, best_.workspaceSize);
    LOCKSTEP_CUBLAS(cublasLtMatmul(cublas_handle(), descriptor_.get(), &alpha, a, a_.get(), b, b_.get(), &beta_, d,
                                   d_.get(), d, d_.get(), &best_.algo, workspace.as<void>(), best_.workspaceSize,
                                   native(stream)));
  }

 private:
  void set_extras(const ProductExtras& extras) {
    if (extras.vector != nullptr) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, extras.vector);
    if (extras.matrix != nullptr) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, extras.matrix);
  }

  bool choose(const CublasProduct& product) {
    cublasLtMatmulPreference_t made = nullptr;
    LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const std::size_t limit = math_settings().workspace_bytes;
    LOCKSTEP_CUBLAS(
        cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    for (const auto& [attribute, alignment] :
         {std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.a_alignment),
          std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.b_alignment),
          std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.d_alignment),
          std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.d_alignment)})
      LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(made, attribute, &alignment, sizeof alignment));
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(cublas_handle(), descriptor_.get(), a_.get(), b_.get(),
                                                                 d_.get(), d_.get(), made, 1, &best_, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    LOCKSTEP_CUBLAS(status);
    return found != 0 && best_.state == CUBLAS_STATUS_SUCCESS;
  }

  Layout a_, b_, d_;
  Descriptor descriptor_;
  float beta_;
  cublasLtMatmulHeuristicResult_t best_{};
  bool known_;
};

// One per thread, because a descriptor holds the extras of the current call.
Plan& plan_for(const CublasProduct& product, const ProductExtras& extras, Stream& stream) {
  constexpr std::size_t kMostPlans = 1024;
  thread_local PlanCache<std::pair<int, CublasProduct>, Plan> plans(kMostPlans);
  int device = 0;
  native(stream);  // makes the stream's device the thread's current one
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  const std::pair key(device, product);
  if (Plan* const known = plans.find(key)) return *known;
  return plans.add(key, Plan(product, extras));
}

constexpr std::uint32_t kGoodAlignment = 16;

// For products for which no algorithm can write, or add, directly to D.
void multiply_apart(CublasProduct product, const void* a, const void* b, void* d, Stream& stream) {
  const Shape shape{product.batch, product.n, product.m};
  const bool accumulate = std::exchange(product.accumulate, false);
  const Scratch fresh(stream, static_cast<std::size_t>(shape.count()) * size_of(product.out));
  multiply(product, a, b, fresh.as<void>(), stream);
  convert({fresh.as<void>(), product.out, shape}, {d, product.out, shape, accumulate}, stream);
}

}  // namespace

std::uint32_t alignment_of(const void* pointer) {
  std::uint32_t alignment = 256;
  while (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) alignment /= 2;
  return alignment;
}

void multiply(CublasProduct product, const void* a, const void* b, void* d, Stream& stream) {
  product.a_alignment = alignment_of(a), product.b_alignment = alignment_of(b), product.d_alignment = alignment_of(d);
  Plan& plan = plan_for(product, {}, stream);
  if (!plan.known() && (product.d_alignment < kGoodAlignment || product.accumulate))
    return multiply_apart(product, a, b, d, stream);
  if (!plan.known())
    throw Error("cuBLASLt has no algorithm to multiply ({}, {}) by ({}, {}) in {}", product.m, product.k, product.k,
                product.n, name_of(product.in));
  plan.run(a, b, {}, d, stream);
}

bool multiply_with_epilogue(CublasProduct product, const void* a, const void* b, const ProductExtras& extras, void* d,
                            Stream& stream) {
  product.a_alignment = alignment_of(a), product.b_alignment = alignment_of(b), product.d_alignment = alignment_of(d);
  if (extras.vector != nullptr) product.vector_alignment = alignment_of(extras.vector);
  if (extras.matrix != nullptr) product.matrix_alignment = alignment_of(extras.matrix);
  Plan& plan = plan_for(product, extras, stream);
  if (plan.known()) plan.run(a, b, extras, d, stream);
  return plan.known();
}

void clear(Out out, Stream& stream) {
  if (!out.accumulate && out.count() > 0)
    LOCKSTEP_CUDA(
        cudaMemsetAsync(out.data, 0, static_cast<std::size_t>(out.count()) * size_of(out.dtype), native(stream)));
}

}  // namespace lockstep::cuda
