// Linear layers by cuBLASLt. Its matrices are column-major: our row-major (rows, columns) is its (columns, rows), so that
//   y^T       (out, batch) = weight (out, in)   * x^T (in, batch)      with bias and relu in the epilogue
//   x_grad^T  (in, batch)  = weight^T (in, out) * y_grad^T (out, batch)
//   weight_grad^T (in, out) = x^T (in, batch)   * y_grad (batch, out)
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

namespace {

// D (m, n) = op(A) * op(B), plus D when accumulating; leading dimensions are the stored rows.
struct Product {
  cublasOperation_t a_op, b_op;
  Index m, n, k;
  cublasLtEpilogue_t epilogue;
  bool accumulate;

  auto key() const { return std::tuple(a_op, b_op, m, n, k, epilogue, accumulate); }
  bool operator<(const Product& other) const { return key() < other.key(); }
};

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

Layout make_layout(cublasOperation_t op, Index rows, Index columns) {
  const bool plain = op == CUBLAS_OP_N;
  const auto stored_rows = static_cast<std::uint64_t>(plain ? rows : columns),
             stored_columns = static_cast<std::uint64_t>(plain ? columns : rows);
  cublasLtMatrixLayout_t layout = nullptr;
  LOCKSTEP_CUBLAS(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, stored_rows, stored_columns, static_cast<std::int64_t>(stored_rows)));
  return Layout(layout);
}

template <typename T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  LOCKSTEP_CUBLAS(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof value));
}

// A product and how cuBLASLt does it best: asked once a shape.
class Plan {
 public:
  explicit Plan(const Product& product)
      : a_(make_layout(product.a_op, product.m, product.k)),
        b_(make_layout(product.b_op, product.k, product.n)),
        d_(make_layout(CUBLAS_OP_N, product.m, product.n)),
        beta_(product.accumulate ? 1.0F : 0.0F) {
    cublasLtMatmulDesc_t descriptor = nullptr;
    LOCKSTEP_CUBLAS(
        cublasLtMatmulDescCreate(&descriptor, math_settings().tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    descriptor_.reset(descriptor);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, product.a_op);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, product.b_op);
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
    choose(product);
  }

  void run(const float* a, const float* b, const float* bias, float* d, Stream& stream) {
    if (bias != nullptr) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float alpha = 1;
    const Scratch workspace(stream, best_.workspaceSize);
    LOCKSTEP_CUBLAS(cublasLtMatmul(cublas_handle(), descriptor_.get(), &alpha, a, a_.get(), b, b_.get(), &beta_, d, d_.get(), d, d_.get(),
                                   &best_.algo, workspace.as<void>(), best_.workspaceSize, native(stream)));
  }

 private:
  void choose(const Product& product) {
    cublasLtMatmulPreference_t made = nullptr;
    LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const std::size_t limit = math_settings().workspace_bytes;
    LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    // Gradients are windows of a bucket, and a bias may be one of anything: no more than a float's alignment is promised.
    const std::uint32_t alignment = sizeof(float);
    for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      if (product.accumulate || product.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(made, attribute, &alignment, sizeof alignment));
    int found = 0;
    LOCKSTEP_CUBLAS(cublasLtMatmulAlgoGetHeuristic(cublas_handle(), descriptor_.get(), a_.get(), b_.get(), d_.get(), d_.get(), made, 1,
                                                   &best_, &found));
    if (found == 0)
      throw Error("cuBLASLt knows no way to multiply ({}, {}) by ({}, {}) in float32", product.m, product.k, product.k, product.n);
  }

  Layout a_, b_, d_;
  Descriptor descriptor_;
  float beta_;
  cublasLtMatmulHeuristicResult_t best_{};
};

// By thread: a descriptor holds the bias of the call under way.
Plan& plan_for(const Product& product) {
  thread_local std::map<std::pair<int, Product>, Plan> plans;
  int device = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  const std::pair key(device, product);
  const auto found = plans.find(key);
  return found != plans.end() ? found->second : plans.emplace(key, product).first->second;
}

cublasLtEpilogue_t epilogue_for(bool bias, bool relu) {
  if (bias) return relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

// A product over nothing: what it adds up to is zero.
bool is_empty(const LinearShape& shape) { return shape.batch == 0 || shape.in_features == 0 || shape.out_features == 0; }

}  // namespace

void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu_after, float* y, Stream& stream) {
  if (is_empty(shape)) {
    fill(y, 0, shape.batch * shape.out_features, stream);
    if (bias != nullptr) cuda::bias(y, bias, shape.batch, shape.out_features, stream);
    if (relu_after) relu(y, y, shape.batch * shape.out_features, stream);
    return;
  }
  plan_for({CUBLAS_OP_T, CUBLAS_OP_N, shape.out_features, shape.batch, shape.in_features, epilogue_for(bias != nullptr, relu_after), false})
      .run(weight, x, bias, y, stream);
}

void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  if (is_empty(shape)) {
    if (!accumulate) fill(x_grad, 0, shape.batch * shape.in_features, stream);
    return;
  }
  plan_for({CUBLAS_OP_N, CUBLAS_OP_N, shape.in_features, shape.batch, shape.out_features, CUBLASLT_EPILOGUE_DEFAULT, accumulate})
      .run(weight, y_grad, nullptr, x_grad, stream);
}

void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  if (!is_empty(shape))
    plan_for({CUBLAS_OP_N, CUBLAS_OP_T, shape.in_features, shape.out_features, shape.batch, CUBLASLT_EPILOGUE_DEFAULT, accumulate_weight})
        .run(x, y_grad, nullptr, weight_grad, stream);
  else if (!accumulate_weight)
    fill(weight_grad, 0, shape.in_features * shape.out_features, stream);
  if (bias_grad != nullptr) bias_backward(y_grad, bias_grad, shape.batch, shape.out_features, accumulate_bias, stream);
}

}  // namespace lockstep::cuda
