// Runs the threads of a CUDA block as coroutines of one CPU thread, block after block.
//
// A thread runs until it waits for others, in __syncthreads() or a shuffle; then the next one runs. So every wait that
// the kernel forgot shows: forwards, thread 0 is the first to run, backwards the last, and values that depend on it
// differ. Checked besides: threads that end, or are in a shuffle, while others of their block wait in __syncthreads()
// for ever (undefined on a GPU), lanes that a shuffle's mask names and that do not come, sizes of grid, block and
// shared memory. Under ThreadSanitizer every thread is one of its fibers, which nothing but __syncthreads() orders: it
// reports every race in shared memory and within a block. AddressSanitizer sees accesses outside of scratch memory and
// of arrays whose guards are poisoned.
//
// Not seen: races between blocks, memory that nobody wrote (but for shared memory whose size the launch says, which is
// NaN at first), bank conflicts, speed.
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

// Of the calling thread of a block.
const Place& place();
int lane();
std::byte* dynamic_shared();
int barrier(int predicate);                                                    // is it true for any thread?
std::uint64_t exchange(unsigned mask, std::uint64_t value, int lane_to_read);  // of the warp

bool is_valid(Dim3 grid, Dim3 block, std::size_t shared_bytes);
// Throws std::logic_error where threads wait for ever; `kernel` is its name. One launch at a time.
void launch(Dim3 grid, Dim3 block, std::size_t shared_bytes, const char* kernel, const std::function<void()>& body);
std::size_t launches();  // of this process so far

// Of a cudaStream_t: see cuda_runtime.h.
void on_stream(void* stream, std::function<void()> work);
bool is_recorded(void* stream);

enum class Order { kForwards, kBackwards };
void set_order(Order order);  // of threads in a block, and of blocks

}  // namespace emulated_cuda
