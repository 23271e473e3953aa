// Attention without its matrix of scores (Dao et al. 2022, "FlashAttention"), in float32: one warp per row loops over
// tiles of the other side's rows in shared memory; each lane has one row of the tile. In forward and for the gradient
// of q, rows are queries and tiles have keys; for the gradients of k and v, rows are keys and tiles have queries. Every
// sum has a fixed order, so results are reproducible bit for bit.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/attention_shape.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kTileRows = 32;                      // one per lane
constexpr int kAttentionRows = 8;                  // warps per block
constexpr int kPieces = kMostAttentionWidth / 32;  // parts of a row that a lane holds: elements lane, lane + 32, ...
constexpr Index kMostBlocks = 16 * 1024;

template <typename T> struct HeadRows {
  T* first;
  Index stride;
  __device__ T* row(Index t) const { return first + t * stride; }
};

struct AttentionLaunch {
  AttentionShape shape;
  AttentionParams params;

  __device__ Index heads() const { return shape.batch * shape.heads; }
  // Rows of one head: `length` of them in a sample, `stride` apart.
  template <typename T> __device__ HeadRows<T> rows(T* first, Index head, Index length, Index stride) const {
    return {first + head / shape.heads * length * stride + head % shape.heads * shape.width, stride};
  }
};

// Copies up to kTileRows rows from `first` on into shared memory, `pitch` apart: one more than the width, so that lanes
// have no bank conflicts.
template <typename T>
__device__ void load_tile(const HeadRows<const T>& from, Index first, Index length, Index width, float* tile) {
  const Index pitch = width + 1;
  for (Index i = threadIdx.x; i < kTileRows * width; i += kThreads) {
    const Index row = i / width, column = i % width;
    tile[row * pitch + column] = first + row < length ? widen(from.row(first + row)[column]) : 0.0F;
  }
}

template <typename T> __device__ void load_row(const T* from, Index width, int lane, bool is_there, float* row) {
  for (Index d = lane; d < width; d += 32) row[d] = is_there ? widen(from[d]) : 0.0F;
}

__device__ inline float dot_rows(const float* a, const float* b, Index width) {
  float sum = 0;
  for (Index d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// sums[piece] += sum over the tile's rows of weight(row) * row; lane i passes the weight of row i.
__device__ inline void add_weighted(float weight, const float* tile, Index width, int lane, float (&sums)[kPieces]) {
  for (int row = 0; row < kTileRows; ++row) {
    const float factor = __shfl_sync(0xffffffffu, weight, row);
    for (int piece = 0; piece < kPieces; ++piece)
      if (lane + 32 * piece < width) sums[piece] += factor * tile[row * (width + 1) + lane + 32 * piece];
  }
}

template <typename T>
__device__ void store_row(const float (&sums)[kPieces], float factor, Index width, int lane, T* to, bool accumulate) {
  for (int piece = 0; piece < kPieces; ++piece)
    if (lane + 32 * piece < width) store(to[lane + 32 * piece], sums[piece] * factor, accumulate);
}

template <typename T>
__global__ void attention_forward(AttentionLaunch launch, AttentionOperands<const T> from, T* y, float* log_sums) {
  const AttentionShape& s = launch.shape;
  float* const keys = dynamic_shared<float>();
  float* const values = keys + kTileRows * (s.width + 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const query = values + kTileRows * (s.width + 1) + warp * s.width;
  const Index groups = (s.queries + kAttentionRows - 1) / kAttentionRows, row = s.operand_row();
  for (Index job = blockIdx.x; job < launch.heads() * groups; job += gridDim.x) {
    const Index head = job / groups, first = job % groups * kAttentionRows, t = first + warp;
    const auto q = launch.rows(from.q, head, s.queries, row), k = launch.rows(from.k, head, s.keys, row),
               v = launch.rows(from.v, head, s.keys, row);
    const bool is_there = t < s.queries;
    const Index seen = launch.params.causal ? t + 1 : s.keys;
    const Index end = launch.params.causal ? min(s.keys, first + kAttentionRows) : s.keys;
    float largest = -INFINITY, sum = 0, sums[kPieces] = {};
    load_row(q.row(t), s.width, lane, is_there, query);
    for (Index tile = 0; tile < end; tile += kTileRows) {
      __syncthreads();
      load_tile(k, tile, s.keys, s.width, keys);
      load_tile(v, tile, s.keys, s.width, values);
      __syncthreads();
      const bool is_seen = tile + lane < min(seen, s.keys);
      const float score =
          is_seen ? dot_rows(query, keys + lane * (s.width + 1), s.width) * launch.params.scale : -INFINITY;
      const float most = fmaxf(largest, warp_max(score));
      // The first tile has a key that is visible to the row, so `most` is not infinite; NaN stays NaN.
      const float factor = expf(largest - most), weight = is_seen ? expf(score - most) : 0.0F;
      sum = sum * factor + warp_sum(weight);
      for (float& each : sums) each *= factor;
      add_weighted(weight, values, s.width, lane, sums);
      largest = most;
    }
    __syncthreads();
    if (!is_there) continue;
    store_row(sums, 1.0F / sum, s.width, lane, launch.rows(y, head, s.queries, s.row()).row(t), false);
    if (lane == 0) log_sums[head * s.queries + t] = largest + logf(sum);
  }
}

// Operands and results of backward.
template <typename T> struct AttentionGradients {
  AttentionOperands<const T> from;
  const T *y, *y_grad;
  const float* log_sums;
  float* deltas;  // (N, H, T): y_grad . y
  AttentionOperands<T> to;
  bool accumulate_q, accumulate_k, accumulate_v;
};

template <typename T> __global__ void attention_deltas(AttentionLaunch launch, AttentionGradients<T> of) {
  const AttentionShape& s = launch.shape;
  const int lane = threadIdx.x % 32;
  for (Index i = first_row_of_warp(); i < launch.heads() * s.queries; i += warps_of_grid()) {
    const T *const y = launch.rows(of.y, i / s.queries, s.queries, s.row()).row(i % s.queries),
                   *const grad = launch.rows(of.y_grad, i / s.queries, s.queries, s.row()).row(i % s.queries);
    float sum = 0;
    for (Index d = lane; d < s.width; d += 32) sum += widen(y[d]) * widen(grad[d]);
    sum = warp_sum(sum);
    if (lane == 0) of.deltas[i] = sum;
  }
}

template <typename T> __global__ void attention_query_gradient(AttentionLaunch launch, AttentionGradients<T> of) {
  const AttentionShape& s = launch.shape;
  float* const keys = dynamic_shared<float>();
  float* const values = keys + kTileRows * (s.width + 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const query = values + kTileRows * (s.width + 1) + 2 * warp * s.width;
  float* const grad = query + s.width;
  const Index groups = (s.queries + kAttentionRows - 1) / kAttentionRows, row = s.operand_row();
  for (Index job = blockIdx.x; job < launch.heads() * groups; job += gridDim.x) {
    const Index head = job / groups, first = job % groups * kAttentionRows, t = first + warp;
    const auto q = launch.rows(of.from.q, head, s.queries, row), k = launch.rows(of.from.k, head, s.keys, row),
               v = launch.rows(of.from.v, head, s.keys, row);
    const bool is_there = t < s.queries;
    const Index seen = min(launch.params.causal ? t + 1 : s.keys, s.keys);
    const Index end = launch.params.causal ? min(s.keys, first + kAttentionRows) : s.keys;
    const float log_sum = is_there ? of.log_sums[head * s.queries + t] : 0.0F,
                delta = is_there ? of.deltas[head * s.queries + t] : 0.0F;
    float sums[kPieces] = {};
    load_row(q.row(t), s.width, lane, is_there, query);
    load_row(launch.rows(of.y_grad, head, s.queries, s.row()).row(t), s.width, lane, is_there, grad);
    for (Index tile = 0; tile < end; tile += kTileRows) {
      __syncthreads();
      load_tile(k, tile, s.keys, s.width, keys);
      load_tile(v, tile, s.keys, s.width, values);
      __syncthreads();
      const float p = expf(dot_rows(query, keys + lane * (s.width + 1), s.width) * launch.params.scale - log_sum);
      const float score_grad =
          p * (dot_rows(grad, values + lane * (s.width + 1), s.width) - delta) * launch.params.scale;
      add_weighted(tile + lane < seen ? score_grad : 0.0F, keys, s.width, lane, sums);
    }
    __syncthreads();
    if (is_there)
      store_row(sums, 1.0F, s.width, lane, launch.rows(of.to.q, head, s.queries, row).row(t), of.accumulate_q);
  }
}

template <typename T> __global__ void attention_key_gradients(AttentionLaunch launch, AttentionGradients<T> of) {
  const AttentionShape& s = launch.shape;
  float* const queries = dynamic_shared<float>();
  float* const grads = queries + kTileRows * (s.width + 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const key = grads + kTileRows * (s.width + 1) + 2 * warp * s.width;
  float* const value = key + s.width;
  const Index groups = (s.keys + kAttentionRows - 1) / kAttentionRows, row = s.operand_row();
  for (Index job = blockIdx.x; job < launch.heads() * groups; job += gridDim.x) {
    const Index head = job / groups, first = job % groups * kAttentionRows, at = first + warp;
    const auto q = launch.rows(of.from.q, head, s.queries, row), k = launch.rows(of.from.k, head, s.keys, row),
               v = launch.rows(of.from.v, head, s.keys, row), y_grad = launch.rows(of.y_grad, head, s.queries, s.row());
    const bool is_there = at < s.keys;
    float key_sums[kPieces] = {}, value_sums[kPieces] = {};
    load_row(k.row(at), s.width, lane, is_there, key);
    load_row(v.row(at), s.width, lane, is_there, value);
    for (Index tile = launch.params.causal ? first / kTileRows * kTileRows : 0; tile < s.queries; tile += kTileRows) {
      __syncthreads();
      load_tile(q, tile, s.queries, s.width, queries);
      load_tile(y_grad, tile, s.queries, s.width, grads);
      __syncthreads();
      const Index t = tile + lane;
      float p = 0, score_grad = 0;
      if (t < s.queries && (!launch.params.causal || t >= at)) {
        p = expf(dot_rows(key, queries + lane * (s.width + 1), s.width) * launch.params.scale -
                 of.log_sums[head * s.queries + t]);
        score_grad = p * (dot_rows(value, grads + lane * (s.width + 1), s.width) - of.deltas[head * s.queries + t]) *
                     launch.params.scale;
      }
      add_weighted(p, grads, s.width, lane, value_sums);
      add_weighted(score_grad, queries, s.width, lane, key_sums);
    }
    __syncthreads();
    if (!is_there) continue;
    if (of.to.k != nullptr)
      store_row(key_sums, 1.0F, s.width, lane, launch.rows(of.to.k, head, s.keys, row).row(at), of.accumulate_k);
    if (of.to.v != nullptr)
      store_row(value_sums, 1.0F, s.width, lane, launch.rows(of.to.v, head, s.keys, row).row(at), of.accumulate_v);
  }
}

// The size of two tiles and of `rows` rows per warp.
std::size_t shared_bytes(Index width, Index rows) {
  require_attention_width(width);
  return static_cast<std::size_t>(2 * kTileRows * (width + 1) + rows * kAttentionRows * width) * sizeof(float);
}

unsigned attention_blocks(const AttentionShape& s, Index rows) {
  const Index jobs = s.batch * s.heads * ((rows + kAttentionRows - 1) / kAttentionRows);
  return static_cast<unsigned>(std::clamp<Index>(jobs, 1, kMostBlocks));
}

void clear_gradient(Out grad, Stream& stream) {
  if (grad && !grad.accumulate && grad.count() > 0)
    LOCKSTEP_CUDA(
        cudaMemsetAsync(grad.data, 0, static_cast<std::size_t>(grad.count()) * size_of(grad.dtype), native(stream)));
}

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) return clear_gradient(y, stream);
  with_float(q.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((attention_forward<T>), attention_blocks(s, s.queries), kThreads, shared_bytes(s.width, 1), stream,
                    AttentionLaunch{s, params}, attention_operands(s, q.as<T>(), k.as<T>(), v.as<T>()), y.as<T>(),
                    log_sums.floats());
  });
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) {
    for (const OutputView* grad : {&q_grad, &k_grad, &v_grad}) clear_gradient(*grad, stream);
    return;
  }
  const Scratch deltas(stream, static_cast<std::size_t>(s.batch * s.heads * s.queries) * sizeof(float));
  const AttentionLaunch launch{s, params};
  with_float(q.dtype, [&]<typename T>(T*) {
    const AttentionGradients<T> of{attention_operands(s, q.as<T>(), k.as<T>(), v.as<T>()),
                                   y.as<T>(),
                                   y_grad.as<T>(),
                                   log_sums.floats(),
                                   deltas.as<float>(),
                                   attention_operands(s, q_grad.as<T>(), k_grad.as<T>(), v_grad.as<T>()),
                                   q_grad.accumulate,
                                   (s.packed ? q_grad : k_grad).accumulate,
                                   (s.packed ? q_grad : v_grad).accumulate};
    LOCKSTEP_LAUNCH((attention_deltas<T>), blocks_for(s.batch * s.heads * s.queries, kWarpsOfBlock), kThreads, 0,
                    stream, launch, of);
    if (of.to.q != nullptr)
      LOCKSTEP_LAUNCH((attention_query_gradient<T>), attention_blocks(s, s.queries), kThreads, shared_bytes(s.width, 2),
                      stream, launch, of);
    if (of.to.k != nullptr || of.to.v != nullptr)
      LOCKSTEP_LAUNCH((attention_key_gradients<T>), attention_blocks(s, s.keys), kThreads, shared_bytes(s.width, 2),
                      stream, launch, of);
  });
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
}

}  // namespace lockstep::cuda
