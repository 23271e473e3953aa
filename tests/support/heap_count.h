// How often this program, or this thread, has called operator new. Add heap_count.cpp to the test's sources.
#pragma once

#include <cstddef>

namespace lockstep::test_support {

std::size_t heap_allocations();            // by any thread of the program
std::size_t heap_allocations_by_thread();  // by the calling thread

}  // namespace lockstep::test_support
