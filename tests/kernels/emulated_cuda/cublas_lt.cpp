#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/kernels/emulated_cuda/cublasLt.h"
#include "tests/kernels/emulated_cuda/elements.h"
#include "tests/kernels/emulated_cuda/table.h"

namespace {

using emulated_cuda::kWorkspace;
using emulated_cuda::read_element;
using emulated_cuda::round_to_tf32;
using emulated_cuda::write_element;

lockstep::DType dtype_of(cudaDataType_t type) {
  return type == CUDA_R_32F   ? lockstep::DType::kFloat32
         : type == CUDA_R_16F ? lockstep::DType::kFloat16
                              : lockstep::DType::kBFloat16;
}

std::size_t index_in(const EmulatedLayout& layout, cublasOperation_t op, std::uint64_t row, std::uint64_t column) {
  const auto leading = static_cast<std::uint64_t>(layout.leading);
  return op == CUBLAS_OP_N ? row + column * leading : column + row * leading;
}

std::uint64_t rows_of(const EmulatedLayout& layout, cublasOperation_t op) {
  return op == CUBLAS_OP_N ? layout.rows : layout.columns;
}
std::uint64_t columns_of(const EmulatedLayout& layout, cublasOperation_t op) {
  return op == CUBLAS_OP_N ? layout.columns : layout.rows;
}

bool has_matrix(const EmulatedProduct& product) { return (product.epilogue & 128) != 0; }
bool applies_gelu(const EmulatedProduct& product) { return (product.epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == 160; }
bool applies_gelu_slope(const EmulatedProduct& product) { return product.epilogue == CUBLASLT_EPILOGUE_DGELU; }

// GELU by tanh, and its derivative.
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

bool fits(const EmulatedProduct& product, const EmulatedLayout& a, const EmulatedLayout& b, const EmulatedLayout& c,
          const EmulatedLayout& d) {
  for (const EmulatedLayout* each : {&a, &b, &c, &d})
    if (each->leading < static_cast<std::int64_t>(each->rows) || each->rows == 0 || each->columns == 0 ||
        each->batch != d.batch)
      return false;
  if (product.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F) return false;
  if (product.bias_type != -1 && product.bias_type != d.type) return false;
  if (has_matrix(product) &&
      (product.matrix_leading % 8 != 0 || product.matrix_leading < static_cast<std::int64_t>(d.rows) || d.batch != 1))
    return false;
  return a.type == b.type && c.type == d.type && (d.type == a.type || d.type == CUDA_R_32F) &&
         rows_of(a, product.a_op) == d.rows && columns_of(b, product.b_op) == d.columns &&
         columns_of(a, product.a_op) == rows_of(b, product.b_op) && c.rows == d.rows && c.columns == d.columns;
}

bool is_aligned(const void* pointer, std::uint32_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

std::uintptr_t alignment_of(const void* pointer) {
  const auto bits = reinterpret_cast<std::uintptr_t>(pointer);
  return std::min<std::uintptr_t>(bits & (~bits + 1), 16);
}

template <typename T> cublasStatus_t read(const void* value, std::size_t bytes, T& out) {
  if (bytes != sizeof out) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&out, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// One product of a batch: its operands, and the factors of the result and of C.
struct OneProduct {
  EmulatedProduct product;
  EmulatedLayout a_layout, b_layout, c_layout, d_layout;
  const void *a, *b, *c;
  void* d;
  float by, of_c;
};

void multiply_one(const OneProduct& of) {
  const auto& [product, a_layout, b_layout, c_layout, d_layout, a, b, c, d, by, of_c] = of;
  const bool adds_bias = (product.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0,
             clamps = (product.epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
  const std::uint64_t depth = columns_of(a_layout, product.a_op);
  for (std::uint64_t column = 0; product.epilogue == CUBLASLT_EPILOGUE_BGRADB && column < d_layout.columns; ++column) {
    float sum = 0;
    for (std::uint64_t k = 0; k < depth; ++k)
      sum += read_element(dtype_of(b_layout.type), b, index_in(b_layout, product.b_op, k, column));
    write_element(dtype_of(d_layout.type), const_cast<void*>(product.bias), column, sum);
  }
  const auto factor = [in_tf32 = product.compute == CUBLAS_COMPUTE_32F_FAST_TF32](const EmulatedLayout& layout,
                                                                                  const void* data, std::size_t i) {
    const float value = read_element(dtype_of(layout.type), data, i);
    return in_tf32 ? round_to_tf32(value) : value;
  };
  for (std::uint64_t column = 0; column < d_layout.columns; ++column)
    for (std::uint64_t row = 0; row < d_layout.rows; ++row) {
      float sum = 0;
      for (std::uint64_t k = 0; k < depth; ++k)
        sum += factor(a_layout, a, index_in(a_layout, product.a_op, row, k)) *
               factor(b_layout, b, index_in(b_layout, product.b_op, k, column));
      sum *= by;
      // Otherwise C is not read.
      if (of_c != 0)
        sum += of_c * read_element(dtype_of(c_layout.type), c, index_in(c_layout, CUBLAS_OP_N, row, column));
      if (adds_bias) sum += read_element(dtype_of(d_layout.type), product.bias, row);
      const auto at = row + column * static_cast<std::uint64_t>(product.matrix_leading);
      if (applies_gelu(product)) {
        write_element(dtype_of(d_layout.type), const_cast<void*>(product.matrix), at, sum);
        sum = static_cast<float>(gelu(sum));
      } else if (applies_gelu_slope(product)) {
        sum *= static_cast<float>(gelu_slope(read_element(dtype_of(d_layout.type), product.matrix, at)));
      }
      // The GPU's maximum of NaN and 0 is 0.
      write_element(dtype_of(d_layout.type), d, index_in(d_layout, CUBLAS_OP_N, row, column),
                    clamps ? std::fmax(sum, 0.0F) : sum);
    }
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one = 0;
  *handle = &one;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  *layout = new EmulatedLayout{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? read(value, bytes, layout->batch)
                                                         : read(value, bytes, layout->distance);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  if (scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *product = new EmulatedProduct{.compute = compute};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return read(value, bytes, product->a_op);
    case CUBLASLT_MATMUL_DESC_TRANSB: return read(value, bytes, product->b_op);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return read(value, bytes, product->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return read(value, bytes, product->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return read(value, bytes, product->bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return read(value, bytes, product->matrix);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return read(value, bytes, product->matrix_leading);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return read(value, bytes, preference->most_workspace);
  return read(value, bytes, preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (wanted < 1 || !fits(*product, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_epilogue = product->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  if (has_epilogue && d->rows % 4 == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (preference->most_workspace < kWorkspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a->type != CUDA_R_32F && preference->alignment[3] < 8) return CUBLAS_STATUS_SUCCESS;  // none found
  *found = 1;
  results[0] = {{*preference, product->bias, product->matrix}, kWorkspace, CUBLAS_STATUS_SUCCESS};
  if (has_epilogue && d->rows % 4 == 3) results[0] = {{}, 0, CUBLAS_STATUS_NOT_SUPPORTED};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const auto& least = algorithm->chosen_for.alignment;
  const bool has_bias =
      product->epilogue == CUBLASLT_EPILOGUE_BGRADB || (product->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (!fits(*product, *a_layout, *b_layout, *c_layout, *d_layout) || !is_aligned(a, least[0]) ||
      !is_aligned(b, least[1]) || !is_aligned(c, least[2]) || !is_aligned(d, least[3]) ||
      workspace_bytes < kWorkspace || (has_bias && product->bias == nullptr) ||
      (has_matrix(*product) &&
       (product->matrix == nullptr || alignment_of(product->matrix) < alignment_of(algorithm->matrix))))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (has_bias && alignment_of(product->bias) < alignment_of(algorithm->bias)) return CUBLAS_STATUS_INVALID_VALUE;
  ++lockstep::testing::emulated_calls().products;
  emulated_cuda::on_stream(stream, [workspace] { std::memset(workspace, 0xff, kWorkspace); });
  const float by = *static_cast<const float*>(alpha), of_c = *static_cast<const float*>(beta);
  for (std::int32_t n = 0; n < d_layout->batch; ++n) {
    const auto of_batch = [&](const void* matrix, const EmulatedLayout& layout) {
      return static_cast<const std::byte*>(matrix) +
             n * layout.distance * static_cast<std::int64_t>(size_of(dtype_of(layout.type)));
    };
    emulated_cuda::on_stream(
        stream, [one = OneProduct{*product, *a_layout, *b_layout, *c_layout, *d_layout, of_batch(a, *a_layout),
                                  of_batch(b, *b_layout), of_batch(c, *c_layout),
                                  const_cast<std::byte*>(of_batch(d, *d_layout)), by, of_c}] { multiply_one(one); });
  }
  return CUBLAS_STATUS_SUCCESS;
}
