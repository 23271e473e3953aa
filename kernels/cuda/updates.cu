// The fused updates: all tensors in one launch, or as many as fit into a kernel's arguments (passed by value, so
// nothing is copied to the device first). Compiled without contraction: products and sums are rounded one by one, so
// the bits are the CPU's.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/updates/all.h"

namespace lockstep::cuda {

namespace {

constexpr int kPack = 4;
constexpr Index kElementsOfBlock = 4 * kThreads * kPack;
constexpr std::size_t kArgumentBytes = 4096, kBytesOfParams = 128;

template <int kStates> struct Entry {
  float* weight;
  const float* grad;
  float* states[kStates > 0 ? kStates : 1];
  Index count;
};

// `kClocks`: each tensor has a clock.
template <int kStates, bool kClocks = false> struct Batch {
  static constexpr int kMost =
      static_cast<int>((kArgumentBytes - kBytesOfParams - 3 * sizeof(int)) /
                       (sizeof(Entry<kStates>) + sizeof(unsigned) + (kClocks ? sizeof(unsigned) : 0)));
  Entry<kStates> tensors[kMost];
  unsigned first_block[kMost + 1];
  unsigned clocks[kClocks ? kMost : 1];
  int count;
};

// The work of one block: a piece of one tensor.
template <int kStates> struct Piece {
  Entry<kStates> tensor;
  Index begin, end;
  unsigned clock;
};
template <int kStates, bool kClocks> __device__ Piece<kStates> piece_of_block(const Batch<kStates, kClocks>& batch) {
  int low = 0, high = batch.count;  // the tensor of this block: the last one whose first block is not above
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (blockIdx.x >= batch.first_block[middle] ? low : high) = middle;
  }
  const Index begin = static_cast<Index>(blockIdx.x - batch.first_block[low]) * kElementsOfBlock;
  return {batch.tensors[low], begin, min(begin + kElementsOfBlock, batch.tensors[low].count),
          batch.clocks[kClocks ? low : 0]};
}

// `width` elements at index `at` of each array: one, or a pack that one instruction moves.
template <int width, typename Formula>
__device__ void update_at(const Entry<Formula::kStates>& tensor, Index at, const Formula& formula) {
  using Elements = Pack<float, width>;
  constexpr int kStates = Formula::kStates;
  Elements weight = reinterpret_cast<const Elements*>(tensor.weight)[at];
  const Elements grad = reinterpret_cast<const Elements*>(tensor.grad)[at];
  Elements states[kStates > 0 ? kStates : 1];
  for (int k = 0; k < kStates; ++k) states[k] = reinterpret_cast<const Elements*>(tensor.states[k])[at];
  for (int i = 0; i < width; ++i) {
    if constexpr (kStates == 0) formula(weight.values[i], grad.values[i]);
    if constexpr (kStates == 1) formula(weight.values[i], grad.values[i], states[0].values[i]);
    if constexpr (kStates == 2) formula(weight.values[i], grad.values[i], states[0].values[i], states[1].values[i]);
    if constexpr (kStates == 3)
      formula(weight.values[i], grad.values[i], states[0].values[i], states[1].values[i], states[2].values[i]);
  }
  reinterpret_cast<Elements*>(tensor.weight)[at] = weight;
  for (int k = 0; k < kStates; ++k) reinterpret_cast<Elements*>(tensor.states[k])[at] = states[k];
}

template <int kStates> __device__ bool is_aligned(const Entry<kStates>& tensor) {
  auto bits = reinterpret_cast<std::uintptr_t>(tensor.weight) | reinterpret_cast<std::uintptr_t>(tensor.grad);
  for (int k = 0; k < kStates; ++k) bits |= reinterpret_cast<std::uintptr_t>(tensor.states[k]);
  return bits % sizeof(Pack<float, kPack>) == 0;
}

template <typename Formula, typename Params> using BatchOf =
    Batch<Formula::kStates, updates::CountsByTensor<Formula, Params>>;

template <typename Formula, typename Params>
__global__ void update_batch(const __grid_constant__ BatchOf<Formula, Params> batch, Params params) {
  if (updates::skips(params)) return;
  const Piece<Formula::kStates> piece = piece_of_block(batch);
  if constexpr (updates::CountsByTensor<Formula, Params>) params = updates::at_clock(params, piece.clock);
  const Formula formula(params);
  Index i = piece.begin;
  if (is_aligned(piece.tensor)) {
    const Index packs_end = piece.end / kPack;
    for (Index pack = piece.begin / kPack + threadIdx.x; pack < packs_end; pack += blockDim.x)
      update_at<kPack>(piece.tensor, pack, formula);
    i = packs_end * kPack;
  }
  for (i += threadIdx.x; i < piece.end; i += blockDim.x) update_at<1>(piece.tensor, i, formula);
}

// Indices of clocks, as many as fit into a kernel's arguments.
struct ClockList {
  static constexpr int kMost = static_cast<int>((kArgumentBytes - kBytesOfParams) / sizeof(unsigned)) - 1;
  unsigned indices[kMost];
  int count;
};

// Runs before the batches, one thread per clock; the stream keeps the order.
template <typename Formula, typename Params>
__global__ void advance_clocks(const __grid_constant__ ClockList list, Params params) {
  if (updates::skips(params)) return;
  for (Index i = first_item(); i < list.count; i += stride_of_grid())
    Formula::advance(params.group.clock[list.indices[i]], params);
}

template <typename Formula, typename Params> __global__ void advance_clock(Params params) {
  Formula::advance(*params.clock, params);
}

__global__ void find_bad(const __grid_constant__ Batch<0> batch, LossScaleState* state) {
  const Piece<0> piece = piece_of_block(batch);
  bool bad = false;
  for (Index i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) bad |= !isfinite(piece.tensor.grad[i]);
  if (__syncthreads_or(bad ? 1 : 0) != 0 && threadIdx.x == 0) atomicExch(&state->found_bad, 1.0F);
}

__global__ void begin_scale(LossScaleRule rule, const LossScaleState* state, LossScaleStep* step) {
  updates::begin(rule, *state, *step);
}
__global__ void update_scale(LossScaleRule rule, LossScaleStep* step, LossScaleState* state) {
  updates::follow(rule, *step, *state);
}

__global__ void squares_of_pieces(const __grid_constant__ Batch<0> batch, double* sums) {
  const Piece<0> piece = piece_of_block(batch);
  double sum = 0;
  for (Index i = piece.begin + threadIdx.x; i < piece.end; i += blockDim.x) {
    const double value = piece.tensor.grad[i];
    sum += value * value;
  }
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Block i sums for the batch's tensor i, whose pieces are adjacent.
__global__ void squares_of_tensors(const __grid_constant__ Batch<0> batch, const double* pieces, double* sums) {
  double sum = 0;
  for (unsigned i = batch.first_block[blockIdx.x] + threadIdx.x; i < batch.first_block[blockIdx.x + 1]; i += kThreads)
    sum += pieces[i];
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Runs in one block.
__global__ void norm_of_all(const double* sums, Index count, NormParams params, NormResult* result) {
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) *result = updates::norm_of(sum, params);
}

unsigned blocks_of(const UpdateTensor& tensor) {
  return static_cast<unsigned>((tensor.count + kElementsOfBlock - 1) / kElementsOfBlock);
}

// Calls `launch` with as many tensors at a time as fit into a kernel's arguments, and the number of blocks. Empty
// tensors are left out unless there is a result per tensor; then a batch may have no blocks.
template <int kStates, bool kClocks = false, typename Launch>
void in_batches(std::span<const UpdateTensor> tensors, Launch&& launch, bool with_empty = false) {
  Batch<kStates, kClocks> batch{};
  for (const UpdateTensor& tensor : tensors) {
    if (tensor.count == 0 && !with_empty) continue;
    if (batch.count == batch.kMost) {
      launch(batch, batch.first_block[batch.count]);
      batch = {};
    }
    Entry<kStates>& entry = batch.tensors[batch.count];
    entry.weight = tensor.weight, entry.grad = tensor.grad, entry.count = tensor.count;
    for (int k = 0; k < kStates; ++k) entry.states[k] = tensor.states[k];
    if constexpr (kClocks) batch.clocks[batch.count] = static_cast<unsigned>(tensor.clock);
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + blocks_of(tensor);
    ++batch.count;
  }
  if (batch.count > 0) launch(batch, batch.first_block[batch.count]);
}

// Advances each clock once, including those of empty tensors.
template <typename Formula, typename Params>
void advance_all(std::span<const UpdateTensor> tensors, const Params& params, Stream& stream) {
  if constexpr (updates::CountsByTensor<Formula, Params>) {
    static_assert(sizeof(ClockList) + sizeof(Params) <= kArgumentBytes, "kernel arguments");
    const auto advance = advance_clocks<Formula, Params>;
    ClockList list{};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (i > 0 && tensors[i].clock == tensors[i - 1].clock) continue;
      if (list.count == ClockList::kMost) {
        LOCKSTEP_LAUNCH(advance, blocks_for(list.count), kThreads, 0, stream, list, params);
        list.count = 0;
      }
      list.indices[list.count++] = static_cast<unsigned>(tensors[i].clock);
    }
    if (list.count > 0) LOCKSTEP_LAUNCH(advance, blocks_for(list.count), kThreads, 0, stream, list, params);
  } else {
    const auto advance = advance_clock<Formula, Params>;
    LOCKSTEP_LAUNCH(advance, 1, 1, 0, stream, params);
  }
}

template <typename Formula, typename Params>
void launch(std::span<const UpdateTensor> tensors, const Params& params, Stream& stream) {
  using Tensors = BatchOf<Formula, Params>;
  static_assert(sizeof(Params) <= kBytesOfParams && sizeof(Tensors) + sizeof(Params) <= kArgumentBytes,
                "kernel arguments");
  if constexpr (updates::Counts<Formula, Params>) advance_all<Formula>(tensors, params, stream);
  const auto update = update_batch<Formula, Params>;
  in_batches<Formula::kStates, updates::CountsByTensor<Formula, Params>>(
      tensors, [&](const Tensors& batch, unsigned blocks) {
        LOCKSTEP_LAUNCH(update, blocks, kThreads, 0, stream, batch, params);
      });
}

template <typename Params> void update(std::span<const UpdateTensor> tensors, const Params& params, Stream& stream) {
  updates::with_formula(params, [&](auto use) { launch<typename decltype(use)::type>(tensors, params, stream); });
}

Index pieces_of(std::span<const UpdateTensor> tensors) {
  Index pieces = 0;
  for (const UpdateTensor& tensor : tensors) pieces += blocks_of(tensor);
  return pieces;
}

void norm_of_sums(const double* sums, Index count, const NormParams& params, NormResult* result, Stream& stream) {
  LOCKSTEP_LAUNCH(norm_of_all, 1, kThreads, 0, stream, sums, count, params, result);
}

void gradient_norm(std::span<const UpdateTensor> tensors, const NormParams& params, NormResult* result,
                   Stream& stream) {
  const Index pieces = pieces_of(tensors);
  const Scratch sums(stream, static_cast<std::size_t>(std::max<Index>(pieces, 1)) * sizeof(double));
  auto* next = sums.as<double>();
  in_batches<0>(tensors, [&](const Batch<0>& batch, unsigned blocks) {
    LOCKSTEP_LAUNCH(squares_of_pieces, blocks, kThreads, 0, stream, batch, next);
    next += blocks;
  });
  norm_of_sums(sums.as<const double>(), pieces, params, result, stream);
}

void square_sums(std::span<const UpdateTensor> tensors, double* sums, Stream& stream) {
  const Scratch pieces(stream, static_cast<std::size_t>(std::max<Index>(pieces_of(tensors), 1)) * sizeof(double));
  auto* next = pieces.as<double>();
  in_batches<0>(
      tensors,
      [&](const Batch<0>& batch, unsigned blocks) {
        const auto count = static_cast<unsigned>(batch.count);
        if (blocks > 0) LOCKSTEP_LAUNCH(squares_of_pieces, blocks, kThreads, 0, stream, batch, next);
        LOCKSTEP_LAUNCH(squares_of_tensors, count, kThreads, 0, stream, batch, next, sums);
        next += blocks;
        sums += count;
      },
      true);
}

void find_bad_gradients(std::span<const UpdateTensor> tensors, LossScaleState* state, Stream& stream) {
  in_batches<0>(tensors, [&](const Batch<0>& batch, unsigned blocks) {
    LOCKSTEP_LAUNCH(find_bad, blocks, kThreads, 0, stream, batch, state);
  });
}

void begin_loss_scale(const LossScaleRule& rule, const LossScaleState* state, LossScaleStep* step, Stream& stream) {
  LOCKSTEP_LAUNCH(begin_scale, 1, 1, 0, stream, rule, state, step);
}
void update_loss_scale(const LossScaleRule& rule, LossScaleStep* step, LossScaleState* state, Stream& stream) {
  LOCKSTEP_LAUNCH(update_scale, 1, 1, 0, stream, rule, step, state);
}

}  // namespace

void use_updates(KernelTable& table) {
#define LOCKSTEP_UPDATE(name, Params) table.name = update<Params>;
#include "lockstep/core/operators.def"
  table.gradient_norm = gradient_norm;
  table.square_sums = square_sums;
  table.norm_of_sums = norm_of_sums;
  table.find_bad_gradients = find_bad_gradients;
  table.begin_loss_scale = begin_loss_scale;
  table.update_loss_scale = update_loss_scale;
}

}  // namespace lockstep::cuda
