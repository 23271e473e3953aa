// Runs the threads of a CUDA block as coroutines of one CPU thread, block after block.
//
// A thread runs until it waits for others, in __syncthreads() or a shuffle; then the next one runs. So a missing wait
// in a kernel shows: in forward order thread 0 runs first, in backward order the last one, and values that depend on
// the order differ. It also checks for threads that end, or are in a shuffle, while others of their block wait in
// __syncthreads() forever (undefined on a GPU), lanes that a shuffle's mask names but that do not arrive, and sizes of
// grid, block and shared memory. Under ThreadSanitizer every thread is one of its fibers, which only __syncthreads()
// and, within a warp, __syncwarp() order: it reports every race in shared memory and within a block. AddressSanitizer
// reports accesses outside of scratch memory and of arrays with poisoned guards.
//
// Not detected: races between blocks, uninitialised memory (except dynamic shared memory, which is initially NaN), bank
// conflicts, speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulated_cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  Dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1)
      : x(x), y(y), z(z) {}  // NOLINT(google-explicit-constructor): as CUDA's
  std::size_t count() const { return std::size_t{x} * y * z; }
};

struct Place {
  Dim3 thread, block, block_size, grid;
};

// The place of the calling thread in its block.
const Place& place();
int lane();
std::byte* dynamic_shared();
int barrier(int predicate);  // returns whether it is true for any thread
std::uint64_t exchange(unsigned mask, std::uint64_t value, int lane_to_read);  // within the warp
void warp_barrier();                                                           // of all 32 lanes

// Lets the kernel's launches have more dynamic shared memory than the usual 48 KiB. False: no GPU has so much.
bool allow_shared(const void* kernel, std::size_t bytes);
bool is_valid(const void* kernel, Dim3 grid, Dim3 block, std::size_t shared_bytes);
// Throws std::logic_error if threads wait forever; `kernel` is the kernel's name. One launch at a time.
void launch(Dim3 grid, Dim3 block, std::size_t shared_bytes, const char* kernel, const std::function<void()>& body);
std::size_t launches();  // of this process so far

// Queues work on a cudaStream_t: see cuda_runtime.h.
void on_stream(void* stream, std::function<void()> work);

enum class Order { kForwards, kBackwards };
void set_order(Order order);  // order of threads in a block, and of blocks

}  // namespace emulated_cuda
