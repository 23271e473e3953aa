// How often this program, or this thread, has called operator new. Add heap_count.cpp to the test's sources.
#pragma once

#include <cstddef>

namespace lockstep::test_support {

std::size_t heap_allocations();            // by any thread of the program
std::size_t heap_allocations_by_thread();  // by the calling thread
std::size_t heap_bytes_by_thread();        // that it asked for

// From now on the calling thread's operator new refuses so many bytes and more, as where there is no memory left; 0:
// none.
void refuse_allocations_from(std::size_t bytes);

}  // namespace lockstep::test_support
