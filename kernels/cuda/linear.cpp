// Linear layers by cuBLASLt. Its matrices are column-major: our row-major (rows, columns) is its (columns, rows), so that
//   y^T       (out, batch) = weight (out, in)   * x^T (in, batch)      with the bias in the epilogue
//   x_grad^T  (in, batch)  = weight^T (in, out) * y_grad^T (out, batch)
//   weight_grad^T (in, out) = x^T (in, batch)   * y_grad (batch, out)
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/mixed.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

namespace {

// D (m, n) = op(A) * op(B), plus D when accumulating; leading dimensions are the stored rows. Sums run in float32.
struct Product {
  cublasOperation_t a_op, b_op;
  Index m, n, k;
  cublasLtEpilogue_t epilogue;
  bool accumulate;
  DType in = DType::kFloat32, out = DType::kFloat32;
  std::uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0, bias_alignment = 0;  // filled in at the call

  auto key() const {
    return std::tuple(a_op, b_op, m, n, k, epilogue, accumulate, in, out, a_alignment, b_alignment, d_alignment, bias_alignment);
  }
  bool operator<(const Product& other) const { return key() < other.key(); }
};

cudaDataType_t cuda_type(DType type) { return type == DType::kFloat32 ? CUDA_R_32F : type == DType::kFloat16 ? CUDA_R_16F : CUDA_R_16BF; }

// Gradients are windows of a bucket, aligned to no more than a float: the faster ways are for what is aligned better.
std::uint32_t alignment_of(const void* pointer) {
  std::uint32_t alignment = 256;
  while (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) alignment /= 2;
  return alignment;
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

Layout make_layout(DType type, cublasOperation_t op, Index rows, Index columns) {
  const bool plain = op == CUBLAS_OP_N;
  const auto stored_rows = static_cast<std::uint64_t>(plain ? rows : columns),
             stored_columns = static_cast<std::uint64_t>(plain ? columns : rows);
  cublasLtMatrixLayout_t layout = nullptr;
  LOCKSTEP_CUBLAS(
      cublasLtMatrixLayoutCreate(&layout, cuda_type(type), stored_rows, stored_columns, static_cast<std::int64_t>(stored_rows)));
  return Layout(layout);
}

template <typename T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  LOCKSTEP_CUBLAS(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof value));
}

// A product and how cuBLASLt does it best: asked once a shape.
class Plan {
 public:
  // `bias` is one of the epilogue's kind: whether it is there and how it is aligned may matter to the choice.
  Plan(const Product& product, const void* bias)
      : a_(make_layout(product.in, product.a_op, product.m, product.k)),
        b_(make_layout(product.in, product.b_op, product.k, product.n)),
        d_(make_layout(product.out, CUBLAS_OP_N, product.m, product.n)),
        beta_(product.accumulate ? 1.0F : 0.0F) {
    const bool tf32 = math_settings().tf32 && product.in == DType::kFloat32;
    cublasLtMatmulDesc_t descriptor = nullptr;
    LOCKSTEP_CUBLAS(cublasLtMatmulDescCreate(&descriptor, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    descriptor_.reset(descriptor);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, product.a_op);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, product.b_op);
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
    if (bias != nullptr) set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    known_ = choose(product);
  }

  bool known() const { return known_; }

  void run(const void* a, const void* b, const void* bias, void* d, Stream& stream) {
    if (bias != nullptr) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float alpha = 1;
    const Scratch workspace(stream, best_.workspaceSize);
    LOCKSTEP_CUBLAS(cublasLtMatmul(cublas_handle(), descriptor_.get(), &alpha, a, a_.get(), b, b_.get(), &beta_, d, d_.get(), d, d_.get(),
                                   &best_.algo, workspace.as<void>(), best_.workspaceSize, native(stream)));
  }

 private:
  bool choose(const Product& product) {
    cublasLtMatmulPreference_t made = nullptr;
    LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceCreate(&made));
    const Preference preference(made);
    const std::size_t limit = math_settings().workspace_bytes;
    LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    for (const auto& [attribute, alignment] : {std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.a_alignment),
                                               std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.b_alignment),
                                               std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.d_alignment),
                                               std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.d_alignment)})
      LOCKSTEP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(made, attribute, &alignment, sizeof alignment));
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(cublas_handle(), descriptor_.get(), a_.get(), b_.get(), d_.get(), d_.get(), made, 1, &best_, &found);
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

// By thread: a descriptor holds the bias of the call under way.
Plan& plan_for(const Product& product, const void* bias, Stream& stream) {
  thread_local std::map<std::pair<int, Product>, Plan> plans;
  int device = 0;
  native(stream);  // its device is the thread's from here on
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  const std::pair key(device, product);
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  return plans.try_emplace(key, product, bias).first->second;
}

constexpr std::uint32_t kGoodAlignment = 16;

void multiply(Product product, const void* a, const void* b, void* d, Stream& stream);

// Where there is no way to write, or add, to D where it lies.
void multiply_apart(Product product, const void* a, const void* b, void* d, Stream& stream) {
  const Index count = product.m * product.n;
  const bool accumulate = std::exchange(product.accumulate, false);
  const Scratch fresh(stream, static_cast<std::size_t>(count) * size_of(product.out));
  multiply(product, a, b, fresh.as<void>(), stream);
  mixed::convert(product.out, fresh.as<void>(), product.out, d, count, accumulate, stream);
}

void multiply(Product product, const void* a, const void* b, void* d, Stream& stream) {
  product.a_alignment = alignment_of(a), product.b_alignment = alignment_of(b), product.d_alignment = alignment_of(d);
  Plan& plan = plan_for(product, nullptr, stream);
  if (!plan.known() && (product.d_alignment < kGoodAlignment || product.accumulate)) return multiply_apart(product, a, b, d, stream);
  if (!plan.known())
    throw Error("cuBLASLt knows no way to multiply ({}, {}) by ({}, {}) in {}", product.m, product.k, product.k, product.n,
                name_of(product.in));
  plan.run(a, b, nullptr, d, stream);
}

// A product over nothing: what it adds up to is zero. Zeros are the same bits in every type.
bool is_empty(const LinearShape& shape) { return shape.batch == 0 || shape.in_features == 0 || shape.out_features == 0; }
void clear(DType type, void* out, Index count, Stream& stream) {
  if (count > 0) LOCKSTEP_CUDA(cudaMemsetAsync(out, 0, static_cast<std::size_t>(count) * size_of(type), native(stream)));
}

void add_bias(DType type, void* y, const void* bias, Index rows, Index channels, Stream& stream) {
  if (type == DType::kFloat32)
    cuda::bias(static_cast<float*>(y), static_cast<const float*>(bias), rows, channels, stream);
  else
    mixed::bias(type, y, bias, rows, channels, stream);
}
void clamp(DType type, void* y, Index count, Stream& stream) {
  if (type == DType::kFloat32)
    relu(static_cast<const float*>(y), static_cast<float*>(y), count, stream);
  else
    mixed::relu(type, y, y, count, stream);
}

void product_and_bias(DType type, const LinearShape& shape, const void* x, const void* weight, const void* bias, void* y, Stream& stream) {
  if (!is_empty(shape)) {
    Product product{CUBLAS_OP_T,
                    CUBLAS_OP_N,
                    shape.out_features,
                    shape.batch,
                    shape.in_features,
                    bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS,
                    false,
                    type,
                    type,
                    alignment_of(weight),
                    alignment_of(x),
                    alignment_of(y),
                    bias == nullptr ? 0 : alignment_of(bias)};
    if (Plan& fused = plan_for(product, bias, stream); fused.known()) return fused.run(weight, x, bias, y, stream);
    product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // narrow products have no fused form
    product.bias_alignment = 0;
    multiply(product, weight, x, y, stream);
  } else {
    clear(type, y, shape.batch * shape.out_features, stream);
  }
  if (bias != nullptr) add_bias(type, y, bias, shape.batch, shape.out_features, stream);
}

// ReLU is no part of the epilogue: cuBLASLt's is a maximum with 0, which makes 0 of NaN, and a broken model would seem whole.
void forward(DType type, const LinearShape& shape, const void* x, const void* weight, const void* bias, bool relu_after, void* y,
             Stream& stream) {
  product_and_bias(type, shape, x, weight, bias, y, stream);
  if (relu_after) clamp(type, y, shape.batch * shape.out_features, stream);
}

void backward_data(DType type, const LinearShape& shape, const void* y_grad, const void* weight, void* x_grad, bool accumulate,
                   Stream& stream) {
  if (!is_empty(shape))
    multiply(
        {CUBLAS_OP_N, CUBLAS_OP_N, shape.in_features, shape.batch, shape.out_features, CUBLASLT_EPILOGUE_DEFAULT, accumulate, type, type},
        weight, y_grad, x_grad, stream);
  else if (!accumulate)
    clear(type, x_grad, shape.batch * shape.in_features, stream);
}

void backward_weights(DType type, const LinearShape& shape, const void* x, const void* y_grad, float* weight_grad, bool accumulate,
                      Stream& stream) {
  if (!is_empty(shape))
    multiply({CUBLAS_OP_N, CUBLAS_OP_T, shape.in_features, shape.out_features, shape.batch, CUBLASLT_EPILOGUE_DEFAULT, accumulate, type,
              DType::kFloat32},
             x, y_grad, weight_grad, stream);
  else if (!accumulate)
    fill(weight_grad, 0, shape.in_features * shape.out_features, stream);
}

}  // namespace

void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream& stream) {
  forward(DType::kFloat32, shape, x, weight, bias, relu, y, stream);
}

void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  backward_data(DType::kFloat32, shape, y_grad, weight, x_grad, accumulate, stream);
}

void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  backward_weights(DType::kFloat32, shape, x, y_grad, weight_grad, accumulate_weight, stream);
  if (bias_grad != nullptr) bias_backward(y_grad, bias_grad, shape.batch, shape.out_features, accumulate_bias, stream);
}

void mixed::linear(DType type, const LinearShape& shape, const void* x, const void* weight, const void* bias, bool relu, void* y,
                   Stream& stream) {
  forward(type, shape, x, weight, bias, relu, y, stream);
}

void mixed::linear_backward_data(DType type, const LinearShape& shape, const void* y_grad, const void* weight, void* x_grad,
                                 bool accumulate, Stream& stream) {
  backward_data(type, shape, y_grad, weight, x_grad, accumulate, stream);
}

void mixed::linear_backward_weights(DType type, const LinearShape& shape, const void* x, const void* y_grad, float* weight_grad,
                                    float* bias_grad, bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  backward_weights(type, shape, x, y_grad, weight_grad, accumulate_weight, stream);
  if (bias_grad != nullptr) mixed::bias_backward(type, y_grad, bias_grad, shape.batch, shape.out_features, accumulate_bias, stream);
}

}  // namespace lockstep::cuda
