// Attention without its matrix of scores (Dao et al. 2022, "FlashAttention"), in float32: a block has rows of one side,
// a few for each of its warps, and loops over tiles of the other side's rows; both are in shared memory. In forward and
// for the gradient of q, rows are queries and tiles have keys; for the gradients of k and v, rows are keys and tiles
// have queries. Every sum has a fixed order, so results are reproducible bit for bit.
//
// A lane computes the products of one row of the tile with all rows of its warp, and then, with the other lanes'
// results as weights, sums of the tile's rows for its columns (lane, lane + 32, ...). What it reads of the tile serves
// all rows of the warp: 16 multiply-adds take 5 or 6 loads from shared memory; with one row they would take 20 to 32.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/float_attention.h"

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kTileRows = 32;  // one per lane
constexpr int kChunk = 4;      // elements of a row that a thread moves at once
constexpr Index kMostBlocks = 16 * 1024;

// A row has up to 32 * kPieces elements: a lane sums that many columns. Longer rows are fewer, so that a block needs no
// more shared memory than every GPU since Ampere has (99 KiB).
template <int kPieces> constexpr int kRowsOfWarp = kPieces <= 4 ? 4 : 2;
template <int kPieces> constexpr int kRowsOfBlock = kRowsOfWarp<kPieces>* kWarpsOfBlock;

template <typename T> struct HeadRows {
  T* first;
  Index stride;
  __device__ T* row(Index t) const { return first + t * stride; }
};

struct AttentionLaunch {
  AttentionShape shape;
  AttentionParams params;
  int width, padded;  // elements of a row, and those of whole chunks: the rest is 0
  int pitch;          // the distance of a tile's rows: an odd number of chunks, so that lanes have no bank conflicts
  int copiers_log2;   // 2^this threads copy a row
  bool has_chunks;    // all rows consist of chunks, at addresses that allow loads of a chunk

  __device__ Index heads() const { return shape.batch * shape.heads; }
  // Rows of one head: `length` of them in a sample, `stride` apart.
  template <typename T> __device__ HeadRows<T> rows(T* first, Index head, Index length, Index stride) const {
    return {first + head / shape.heads * length * stride + head % shape.heads * shape.width, stride};
  }
};

__device__ inline float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }

template <typename T> __device__ float4 load_chunk(const AttentionLaunch& launch, const T* row, int column) {
  if (launch.has_chunks) {
    const auto chunk = *reinterpret_cast<const Pack<T, kChunk>*>(row + column);
    return {widen(chunk.values[0]), widen(chunk.values[1]), widen(chunk.values[2]), widen(chunk.values[3])};
  }
  float four[kChunk];
  for (int i = 0; i < kChunk; ++i) four[i] = column + i < launch.width ? widen(row[column + i]) : 0.0F;
  return {four[0], four[1], four[2], four[3]};
}

// Copies `count` rows from `first` on into shared memory, `pitch` apart; those from `length` on are 0.
template <typename T> __device__ void load_rows(const AttentionLaunch& launch, const HeadRows<const T>& from,
                                                Index first, Index length, int count, int pitch, float* to) {
  const int thread = static_cast<int>(threadIdx.x), copiers = 1 << launch.copiers_log2;
  for (int row = thread >> launch.copiers_log2; row < count; row += kThreads >> launch.copiers_log2) {
    const bool is_there = first + row < length;
    const T* const source = from.row(first + row);
    for (int column = (thread & (copiers - 1)) * kChunk; column < launch.padded; column += copiers * kChunk)
      *reinterpret_cast<float4*>(to + row * pitch + column) =
          is_there ? load_chunk(launch, source, column) : float4{0, 0, 0, 0};
  }
}
template <typename T> __device__ void load_tile(const AttentionLaunch& launch, const HeadRows<const T>& from,
                                                Index first, Index length, float* tile) {
  load_rows(launch, from, first, length, kTileRows, launch.pitch, tile);
}

// a . b, added to the sum in the order of the elements.
__device__ inline float add_products(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// products[r] = rows[r] . tile_row; the rows are `padded` apart.
template <int kRows>
__device__ void multiply_rows(const float* rows, const float* tile_row, int padded, float (&products)[kRows]) {
  for (float& product : products) product = 0;
  for (int d = 0; d < padded; d += kChunk) {
    const float4 of_tile = load_four(tile_row + d);
    for (int r = 0; r < kRows; ++r) products[r] = add_products(load_four(rows + r * padded + d), of_tile, products[r]);
  }
}

// sums[r][piece] += sum over the tile's rows of weights[r][row] * row, for the columns of this lane. Lane i has written
// weights[r][i]: the lanes wait for each other before they read them, and before the caller writes the next ones. A
// column beyond the width gets a sum of what lies next to the rows in shared memory (at the end of the second tile, the
// block's own rows), which is not stored: so the loop has no branches.
template <int kRows, int kPieces> __device__ void add_weighted(const AttentionLaunch& launch, const float* weights,
                                                               const float* tile, int lane,
                                                               float (&sums)[kRows][kPieces]) {
  __syncwarp();
  for (int row = 0; row < kTileRows; row += 4) {
    float4 factors[kRows];
    for (int r = 0; r < kRows; ++r) factors[r] = load_four(weights + r * kTileRows + row);
    for (int piece = 0; piece < kPieces; ++piece) {
      const float* const at = tile + row * launch.pitch + lane + 32 * piece;
      const float4 four = {at[0], at[launch.pitch], at[2 * launch.pitch], at[3 * launch.pitch]};
      for (int r = 0; r < kRows; ++r) sums[r][piece] = add_products(factors[r], four, sums[r][piece]);
    }
  }
  __syncwarp();
}

template <typename T, int kPieces> __device__ void store_row(const AttentionLaunch& launch,
                                                             const float (&sums)[kPieces], float factor, int lane,
                                                             T* to, bool accumulate) {
#pragma unroll  // otherwise sums are in memory, not in registers
  for (int piece = 0; piece < kPieces; ++piece)
    if (lane + 32 * piece < launch.width) store(to[lane + 32 * piece], sums[piece] * factor, accumulate);
}

// The shared memory of a block: two tiles, one or two sets of the block's rows, the weights of its warps.
template <int kPieces> struct BlockMemory {
  float *tiles[2], *rows[2], *weights;  // weights: of this warp
  __device__ BlockMemory(const AttentionLaunch& launch, int sets, int warp) {
    const int tile = kTileRows * launch.pitch, set = kRowsOfBlock<kPieces> * launch.padded;
    tiles[0] = dynamic_shared<float>();
    tiles[1] = tiles[0] + tile;
    rows[0] = tiles[1] + tile;
    rows[1] = rows[0] + set;
    weights = rows[0] + sets * set + warp * kRowsOfWarp<kPieces> * kTileRows;
  }
};

template <typename T, int kPieces>
__global__ void attention_forward(AttentionLaunch launch, AttentionOperands<const T> from, T* y, float* log_sums) {
  constexpr int kRows = kRowsOfWarp<kPieces>;
  const AttentionShape& s = launch.shape;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockMemory<kPieces> memory(launch, 1, warp);
  const Index groups = (s.queries + kRowsOfBlock<kPieces> - 1) / kRowsOfBlock<kPieces>, stride = s.operand_row();
  for (Index job = blockIdx.x; job < launch.heads() * groups; job += gridDim.x) {
    const Index head = job / groups, first = job % groups * kRowsOfBlock<kPieces>, own = first + warp * kRows;
    const auto q = launch.rows(from.q, head, s.queries, stride), k = launch.rows(from.k, head, s.keys, stride),
               v = launch.rows(from.v, head, s.keys, stride);
    const Index end = launch.params.causal ? min(s.keys, first + kRowsOfBlock<kPieces>) : s.keys;
    float largest[kRows], totals[kRows] = {}, sums[kRows][kPieces] = {};  // totals: of this lane's keys
    for (float& each : largest) each = -INFINITY;
    load_rows(launch, q, first, s.queries, kRowsOfBlock<kPieces>, launch.padded, memory.rows[0]);
    for (Index tile = 0; tile < end; tile += kTileRows) {
      load_tile(launch, k, tile, s.keys, memory.tiles[0]);
      load_tile(launch, v, tile, s.keys, memory.tiles[1]);
      __syncthreads();
      float products[kRows];
      multiply_rows(memory.rows[0] + warp * kRows * launch.padded, memory.tiles[0] + lane * launch.pitch, launch.padded,
                    products);
      for (int r = 0; r < kRows; ++r) {
        const bool is_seen = tile + lane < (launch.params.causal ? min(s.keys, own + r + 1) : s.keys);
        const float score = is_seen ? products[r] * launch.params.scale : -INFINITY;
        const float most = fmaxf(largest[r], warp_max(score));
        // The first tile has a key that is visible to the row, so `most` is not infinite; NaN stays NaN.
        const float factor = expf(largest[r] - most), weight = is_seen ? expf(score - most) : 0.0F;
        totals[r] = fmaf(totals[r], factor, weight);
        for (float& each : sums[r]) each *= factor;
        memory.weights[r * kTileRows + lane] = weight;
        largest[r] = most;
      }
      add_weighted(launch, memory.weights, memory.tiles[1], lane, sums);
      __syncthreads();
    }
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(totals[r]);
      if (own + r >= s.queries) continue;
      store_row(launch, sums[r], 1.0F / sum, lane, launch.rows(y, head, s.queries, s.row()).row(own + r), false);
      if (lane == 0) log_sums[head * s.queries + own + r] = largest[r] + logf(sum);
    }
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
    for (int d = lane; d < launch.width; d += 32) sum = fmaf(widen(y[d]), widen(grad[d]), sum);
    sum = warp_sum(sum);
    if (lane == 0) of.deltas[i] = sum;
  }
}

template <typename T, int kPieces>
__global__ void attention_query_gradient(AttentionLaunch launch, AttentionGradients<T> of) {
  constexpr int kRows = kRowsOfWarp<kPieces>;
  const AttentionShape& s = launch.shape;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockMemory<kPieces> memory(launch, 2, warp);
  const Index groups = (s.queries + kRowsOfBlock<kPieces> - 1) / kRowsOfBlock<kPieces>, stride = s.operand_row();
  for (Index job = blockIdx.x; job < launch.heads() * groups; job += gridDim.x) {
    const Index head = job / groups, first = job % groups * kRowsOfBlock<kPieces>, own = first + warp * kRows;
    const auto q = launch.rows(of.from.q, head, s.queries, stride), k = launch.rows(of.from.k, head, s.keys, stride),
               v = launch.rows(of.from.v, head, s.keys, stride),
               y_grad = launch.rows(of.y_grad, head, s.queries, s.row());
    const Index end = launch.params.causal ? min(s.keys, first + kRowsOfBlock<kPieces>) : s.keys;
    float log_sums[kRows], deltas[kRows], sums[kRows][kPieces] = {};
    for (int r = 0; r < kRows; ++r) {
      log_sums[r] = own + r < s.queries ? of.log_sums[head * s.queries + own + r] : 0.0F;
      deltas[r] = own + r < s.queries ? of.deltas[head * s.queries + own + r] : 0.0F;
    }
    load_rows(launch, q, first, s.queries, kRowsOfBlock<kPieces>, launch.padded, memory.rows[0]);
    load_rows(launch, y_grad, first, s.queries, kRowsOfBlock<kPieces>, launch.padded, memory.rows[1]);
    for (Index tile = 0; tile < end; tile += kTileRows) {
      load_tile(launch, k, tile, s.keys, memory.tiles[0]);
      load_tile(launch, v, tile, s.keys, memory.tiles[1]);
      __syncthreads();
      const int rows = warp * kRows * launch.padded, tile_row = lane * launch.pitch;
      float scores[kRows], weight_grads[kRows];
      multiply_rows(memory.rows[0] + rows, memory.tiles[0] + tile_row, launch.padded, scores);
      multiply_rows(memory.rows[1] + rows, memory.tiles[1] + tile_row, launch.padded, weight_grads);
      for (int r = 0; r < kRows; ++r) {
        const bool is_seen = tile + lane < (launch.params.causal ? min(s.keys, own + r + 1) : s.keys);
        const float p = is_seen ? expf(scores[r] * launch.params.scale - log_sums[r]) : 0.0F;
        memory.weights[r * kTileRows + lane] = is_seen ? p * (weight_grads[r] - deltas[r]) * launch.params.scale : 0.0F;
      }
      add_weighted(launch, memory.weights, memory.tiles[0], lane, sums);
      __syncthreads();
    }
    for (int r = 0; r < kRows; ++r)
      if (own + r < s.queries)
        store_row(launch, sums[r], 1.0F, lane, launch.rows(of.to.q, head, s.queries, stride).row(own + r),
                  of.accumulate_q);
  }
}

template <typename T, int kPieces>
__global__ void attention_key_gradients(AttentionLaunch launch, AttentionGradients<T> of) {
  constexpr int kRows = kRowsOfWarp<kPieces>;
  const AttentionShape& s = launch.shape;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockMemory<kPieces> memory(launch, 2, warp);
  const Index groups = (s.keys + kRowsOfBlock<kPieces> - 1) / kRowsOfBlock<kPieces>, stride = s.operand_row();
  for (Index job = blockIdx.x; job < launch.heads() * groups; job += gridDim.x) {
    const Index head = job / groups, first = job % groups * kRowsOfBlock<kPieces>, own = first + warp * kRows;
    const auto q = launch.rows(of.from.q, head, s.queries, stride), k = launch.rows(of.from.k, head, s.keys, stride),
               v = launch.rows(of.from.v, head, s.keys, stride),
               y_grad = launch.rows(of.y_grad, head, s.queries, s.row());
    float key_sums[kRows][kPieces] = {}, value_sums[kRows][kPieces] = {};
    load_rows(launch, k, first, s.keys, kRowsOfBlock<kPieces>, launch.padded, memory.rows[0]);
    load_rows(launch, v, first, s.keys, kRowsOfBlock<kPieces>, launch.padded, memory.rows[1]);
    for (Index tile = launch.params.causal ? first / kTileRows * kTileRows : 0; tile < s.queries; tile += kTileRows) {
      load_tile(launch, q, tile, s.queries, memory.tiles[0]);
      load_tile(launch, y_grad, tile, s.queries, memory.tiles[1]);
      __syncthreads();
      const int rows = warp * kRows * launch.padded, tile_row = lane * launch.pitch;
      float scores[kRows], weight_grads[kRows];
      multiply_rows(memory.rows[0] + rows, memory.tiles[0] + tile_row, launch.padded, scores);
      multiply_rows(memory.rows[1] + rows, memory.tiles[1] + tile_row, launch.padded, weight_grads);
      const Index t = tile + lane;
      const float log_sum = t < s.queries ? of.log_sums[head * s.queries + t] : 0.0F,
                  delta = t < s.queries ? of.deltas[head * s.queries + t] : 0.0F;
      for (int r = 0; r < kRows; ++r) {
        const bool is_seen = t < s.queries && (!launch.params.causal || t >= own + r);
        const float p = is_seen ? expf(scores[r] * launch.params.scale - log_sum) : 0.0F;
        memory.weights[r * kTileRows + lane] = p;
        weight_grads[r] = is_seen ? p * (weight_grads[r] - delta) * launch.params.scale : 0.0F;
      }
      add_weighted(launch, memory.weights, memory.tiles[1], lane, value_sums);
      for (int r = 0; r < kRows; ++r) memory.weights[r * kTileRows + lane] = weight_grads[r];
      add_weighted(launch, memory.weights, memory.tiles[0], lane, key_sums);
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (own + r >= s.keys) continue;
      if (of.to.k != nullptr)
        store_row(launch, key_sums[r], 1.0F, lane, launch.rows(of.to.k, head, s.keys, stride).row(own + r),
                  of.accumulate_k);
      if (of.to.v != nullptr)
        store_row(launch, value_sums[r], 1.0F, lane, launch.rows(of.to.v, head, s.keys, stride).row(own + r),
                  of.accumulate_v);
    }
  }
}

template <typename T> AttentionLaunch launch_of(const AttentionShape& s, const AttentionParams& params,
                                                std::initializer_list<const T*> operands) {
  require_attention_width(s.width);
  const int width = static_cast<int>(s.width), chunks = (width + kChunk - 1) / kChunk;
  int copiers_log2 = 0;
  while (copiers_log2 < 5 && (1 << copiers_log2) < chunks) ++copiers_log2;
  const bool has_chunks = width % kChunk == 0 && std::all_of(operands.begin(), operands.end(), [](const T* each) {
                            return is_aligned_to_pack<T, kChunk>(each);
                          });
  return {s, params, width, chunks * kChunk, (chunks | 1) * kChunk, copiers_log2, has_chunks};
}

// Starts `kernel`, for blocks with `sets` sets of `rows` rows in all.
template <int kPieces, typename Kernel, typename... Arguments>
void launch_blocks(Kernel* kernel, const AttentionLaunch& launch, int sets, Index rows, Stream& stream,
                   const Arguments&... arguments) {
  const auto bytes = sizeof(float) * static_cast<std::size_t>(2 * kTileRows * launch.pitch +
                                                              sets * kRowsOfBlock<kPieces> * launch.padded +
                                                              kRowsOfBlock<kPieces> * kTileRows);
  constexpr std::size_t kUsual = 48 * 1024;  // a kernel with more must say so, on each device
  if (bytes > kUsual)
    LOCKSTEP_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  const Index groups = (rows + kRowsOfBlock<kPieces> - 1) / kRowsOfBlock<kPieces>;
  const auto blocks =
      static_cast<unsigned>(std::clamp<Index>(launch.shape.batch * launch.shape.heads * groups, 1, kMostBlocks));
  LOCKSTEP_LAUNCH(kernel, blocks, kThreads, bytes, stream, launch, arguments...);
}

// Calls `call.operator()<kPieces>()` with what rows of this width need.
template <typename Call> void with_pieces(Index width, Call&& call) {
  if (width <= 64) return call.template operator()<2>();
  if (width <= 128) return call.template operator()<4>();
  call.template operator()<kMostAttentionWidth / 32>();
}

}  // namespace

void float_attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  with_float(q.dtype, [&]<typename T>(T*) {
    const AttentionOperands<const T> from = attention_operands(s, q.as<T>(), k.as<T>(), v.as<T>());
    const AttentionLaunch launch = launch_of<T>(s, params, {from.q, from.k, from.v});
    with_pieces(s.width, [&]<int kPieces>() {
      launch_blocks<kPieces>(attention_forward<T, kPieces>, launch, 1, s.queries, stream, from, y.as<T>(),
                             log_sums.floats());
    });
  });
}

void float_attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                              Out k_grad, Out v_grad, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  const Scratch deltas(stream, static_cast<std::size_t>(s.batch * s.heads * s.queries) * sizeof(float));
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
    const AttentionLaunch launch = launch_of<T>(s, params, {of.from.q, of.from.k, of.from.v, of.y_grad});
    LOCKSTEP_LAUNCH((attention_deltas<T>), blocks_for(s.batch * s.heads * s.queries, kWarpsOfBlock), kThreads, 0,
                    stream, launch, of);
    with_pieces(s.width, [&]<int kPieces>() {
      if (of.to.q != nullptr)
        launch_blocks<kPieces>(attention_query_gradient<T, kPieces>, launch, 2, s.queries, stream, of);
      if (of.to.k != nullptr || of.to.v != nullptr)
        launch_blocks<kPieces>(attention_key_gradients<T, kPieces>, launch, 2, s.keys, stream, of);
    });
  });
}

}  // namespace lockstep::cuda
