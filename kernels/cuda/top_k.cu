// The largest magnitudes of many parts of a bucket at once, in the order of their positions: the same as on the CPU, in
// whatever order the blocks run.
//
// A part is cut into pieces, one block each. The smallest magnitude that is sent is found digit by digit (a radix
// select): blocks count how often each value of the digit occurs among elements with the same earlier digits, and one
// block per part picks the value that contains the k-th largest. Then each piece counts the elements that it sends,
// and, after a sum over the earlier pieces, writes them.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/magnitude.h"
#include "lockstep/reduce/compression_kernels.h"

namespace lockstep::cuda {

using hooks::TopKMessages;
using hooks::TopKPart;

namespace {

constexpr Index kSelectRun = 8;  // adjacent elements that a thread processes, so that their order is kept
constexpr Index kSelectTile = kSelectRun * kThreads, kSelectPiece = 8 * kSelectTile;
constexpr std::size_t kPartsBytes = 4000;  // of a kernel's arguments

struct SentPart {
  TopKPart part;
  Index sent;  // number of positions in earlier parts
};

struct Parts {
  static constexpr int kMost =
      static_cast<int>((kPartsBytes - 2 * sizeof(int)) / (sizeof(SentPart) + sizeof(unsigned)));
  SentPart parts[kMost];
  unsigned first_block[kMost + 1];
  int count;
};

// The known digits of a part's smallest sent magnitude, and its rank in size among the elements with these digits.
struct Search {
  std::uint32_t digits, place;
};

struct PieceOfPart {
  int number;  // number of the part
  Index begin, end;
};
__device__ PieceOfPart piece_of_part(const Parts& all) {
  int low = 0, high = all.count;  // finds the last part whose first block is not above
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (blockIdx.x >= all.first_block[middle] ? low : high) = middle;
  }
  const Index begin = static_cast<Index>(blockIdx.x - all.first_block[low]) * kSelectPiece;
  return {low, begin, min(begin + kSelectPiece, static_cast<Index>(all.parts[low].part.count))};
}

// The sums over earlier threads of the block; `total` is set in all threads.
template <typename T> __device__ T exclusive_sum_of_block(T value, T& total) {
  __shared__ T warps[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const T lower = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += lower;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  T before = 0;
  total = 0;
  for (int each = 0; each < kThreads / 32; ++each) {
    if (each == warp) before = total;
    total += warps[each];
  }
  __syncthreads();  // all threads have read it before the next one
  return before + sum - value;
}

// Counts the first digit, and adds the error feedback on the way.
__global__ void count_digits(const __grid_constant__ Parts all, MagnitudeDigit digit, bool is_first, float* values,
                             const Search* searches, unsigned* counts) {
  __shared__ unsigned shared[kMostMagnitudeBins];
  const unsigned bins = 1U << digit.bits;
  const PieceOfPart piece = piece_of_part(all);
  const TopKPart& part = all.parts[piece.number].part;
  for (unsigned bin = threadIdx.x; bin < bins; bin += kThreads) shared[bin] = 0;
  __syncthreads();
  const std::uint32_t digits = is_first ? 0 : searches[piece.number].digits;
  for (Index i = piece.begin + threadIdx.x; i < piece.end; i += kThreads) {
    float value = values[part.offset + i];
    if (is_first && part.error != nullptr) values[part.offset + i] = value = value + part.error[i];
    const std::uint32_t rest = magnitude_bits(value) >> digit.shift;
    if (rest >> digit.bits == digits) atomicAdd(&shared[rest & (bins - 1)], 1U);
  }
  __syncthreads();
  unsigned* const of_part = counts + static_cast<Index>(piece.number) * kMostMagnitudeBins;
  for (unsigned bin = threadIdx.x; bin < bins; bin += kThreads)
    if (shared[bin] != 0) atomicAdd(&of_part[bin], shared[bin]);
}

// One block per part; a thread processes adjacent bins, the first thread the highest ones. Resets the counts to zero
// for the next digit.
__global__ void pick_digit(const __grid_constant__ Parts all, MagnitudeDigit digit, bool is_first, Search* searches,
                           unsigned* counts) {
  const int part = blockIdx.x, bins = 1 << digit.bits, run = bins / kThreads;
  unsigned* const of_part = counts + static_cast<Index>(part) * kMostMagnitudeBins;
  const Search search = is_first ? Search{0, static_cast<std::uint32_t>(all.parts[part].part.kept)} : searches[part];
  const int highest = bins - 1 - static_cast<int>(threadIdx.x) * run;
  unsigned own = 0, total = 0;
  for (int bin = highest; bin > highest - run; --bin) own += of_part[bin];
  unsigned above = exclusive_sum_of_block(own, total);
  if (above < search.place && search.place <= above + own) {
    int bin = highest;
    for (; above + of_part[bin] < search.place; --bin) above += of_part[bin];
    searches[part] = {search.digits << digit.bits | static_cast<std::uint32_t>(bin), search.place - above};
  }
  for (int bin = highest; bin > highest - run; --bin) of_part[bin] = 0;
}

// Two counts, one in each half: elements above the smallest sent magnitude, and elements that have it.
using Sent = unsigned long long;
__device__ Sent sent_as(std::uint32_t magnitude, std::uint32_t least) {
  return magnitude > least ? Sent{1} << 32 : magnitude == least ? Sent{1} : Sent{0};
}

__global__ void count_sent(const __grid_constant__ Parts all, const float* values, const Search* searches,
                           Sent* pieces) {
  const PieceOfPart piece = piece_of_part(all);
  const float* const part = values + all.parts[piece.number].part.offset;
  const std::uint32_t least = searches[piece.number].digits;
  Sent count = 0;
  for (Index i = piece.begin + threadIdx.x; i < piece.end; i += kThreads)
    count += sent_as(magnitude_bits(part[i]), least);
  count = sum_of_block<kThreads>(count);
  if (threadIdx.x == 0) pieces[blockIdx.x] = count;
}

// One block per part: the sums over earlier pieces.
__global__ void sum_pieces(const __grid_constant__ Parts all, Sent* pieces) {
  const unsigned end = all.first_block[blockIdx.x + 1];
  Sent before = 0;
  for (unsigned begin = all.first_block[blockIdx.x]; begin < end; begin += kThreads) {
    const unsigned i = begin + threadIdx.x;
    Sent total = 0;
    const Sent own = exclusive_sum_of_block(i < end ? pieces[i] : 0, total);
    if (i < end) pieces[i] = before + own;
    before += total;
  }
}

// Values that are NaN are dropped, so that they do not return in every later pass.
__global__ void send_pieces(const __grid_constant__ Parts all, const float* values, const Search* searches,
                            const Sent* pieces, std::uint32_t* places, float* chosen) {
  const PieceOfPart piece = piece_of_part(all);
  const SentPart& sent = all.parts[piece.number];
  const TopKPart& part = sent.part;
  const Search least = searches[piece.number];
  Sent before = pieces[blockIdx.x];
  for (Index tile = piece.begin; tile < piece.end; tile += kSelectTile) {
    const Index begin = tile + threadIdx.x * kSelectRun, end = min(begin + kSelectRun, piece.end);
    Sent own = 0, total = 0;
    for (Index i = begin; i < end; ++i) own += sent_as(magnitude_bits(values[part.offset + i]), least.digits);
    Sent at = before + exclusive_sum_of_block(own, total);
    before += total;
    for (Index i = begin; i < end; ++i) {
      const float value = values[part.offset + i];
      const Sent as = sent_as(magnitude_bits(value), least.digits);
      const std::uint32_t above = static_cast<std::uint32_t>(at >> 32), equals = static_cast<std::uint32_t>(at);
      const bool is_sent = as > 1 || (as == 1 && equals < least.place);
      if (is_sent) {
        const Index to = sent.sent + above + min(equals, least.place);
        places[to] = static_cast<std::uint32_t>(part.offset + i);
        chosen[to] = value;
      }
      if (part.error != nullptr) part.error[i] = !is_sent && isfinite(value) ? value : 0.0F;
      at += as;
    }
  }
}

void send_parts(const Parts& all, float* values, std::uint32_t* places, float* chosen, Stream& stream) {
  const auto parts = static_cast<unsigned>(all.count), blocks = all.first_block[all.count];
  const std::size_t bytes = parts * kMostMagnitudeBins * sizeof(unsigned);
  const Scratch counts(stream, bytes), searches(stream, parts * sizeof(Search)), pieces(stream, blocks * sizeof(Sent));
  LOCKSTEP_CUDA(cudaMemsetAsync(counts.as<void>(), 0, bytes, native(stream)));
  for (const MagnitudeDigit& digit : kMagnitudeDigits) {
    const bool is_first = &digit == &kMagnitudeDigits[0];
    LOCKSTEP_LAUNCH(count_digits, blocks, kThreads, 0, stream, all, digit, is_first, values,
                    searches.as<const Search>(), counts.as<unsigned>());
    LOCKSTEP_LAUNCH(pick_digit, parts, kThreads, 0, stream, all, digit, is_first, searches.as<Search>(),
                    counts.as<unsigned>());
  }
  LOCKSTEP_LAUNCH(count_sent, blocks, kThreads, 0, stream, all, values, searches.as<const Search>(), pieces.as<Sent>());
  LOCKSTEP_LAUNCH(sum_pieces, parts, kThreads, 0, stream, all, pieces.as<Sent>());
  LOCKSTEP_LAUNCH(send_pieces, blocks, kThreads, 0, stream, all, values, searches.as<const Search>(),
                  pieces.as<const Sent>(), places, chosen);
}

void select_largest(std::span<const TopKPart> parts, float* values, std::uint32_t* places, float* chosen,
                    Stream& stream) {
  Parts batch{};
  Index sent = 0;
  const auto send = [&] {
    if (batch.count > 0) send_parts(batch, values, places, chosen, stream);
    batch = {};
  };
  for (const TopKPart& part : parts) {
    if (part.kept == 0) continue;  // an empty part
    if (batch.count == Parts::kMost) send();
    const auto blocks = static_cast<unsigned>((part.count + kSelectPiece - 1) / kSelectPiece);
    batch.parts[batch.count] = {part, sent};
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + blocks;
    ++batch.count;
    sent += part.kept;
  }
  send();
}

// For one rank, whose positions are all different.
__global__ void add_places(const std::uint32_t* places, const float* chosen, Index kept, float share, float* values) {
  for (Index k = first_item(); k < kept; k += stride_of_grid()) values[places[k]] += share * chosen[k];
}

void expand_places(const TopKMessages& of, const std::byte* messages, float* values, Stream& stream) {
  if (of.count == 0) return;
  LOCKSTEP_CUDA(cudaMemsetAsync(values, 0, static_cast<std::size_t>(of.count) * sizeof(float), native(stream)));
  const float share = 1 / static_cast<float>(of.senders);
  for (Index sender = 0; sender < of.senders && of.kept > 0; ++sender) {
    const auto* const places = reinterpret_cast<const std::uint32_t*>(messages) + sender * of.kept * 2;
    const auto* const chosen = reinterpret_cast<const float*>(places + of.kept);
    LOCKSTEP_LAUNCH(add_places, blocks_for(of.kept), kThreads, 0, stream, places, chosen, of.kept, share, values);
  }
}

}  // namespace

void add_top_k_kernels(KernelTable& table) {
  static constexpr hooks::TopKKernels kKernels = {.select = select_largest, .expand = expand_places};
  table.families.set(kKernels);
}

}  // namespace lockstep::cuda
