// Counts the calls of operator new in this program, or in this thread. Add heap_count.cpp to the test's sources.
#pragma once

#include <cstddef>

namespace lockstep::test_support {

std::size_t heap_allocations();            // by any thread of the program
std::size_t heap_allocations_by_thread();  // by the calling thread
std::size_t heap_bytes_by_thread();        // requested by the calling thread

// From now on the calling thread's operator new refuses requests of `bytes` and more, as if memory had run out; 0:
// none.
void refuse_allocations_from(std::size_t bytes);

}  // namespace lockstep::test_support
