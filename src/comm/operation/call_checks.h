// Checks of a call that one rank can make alone. Backends compare the values on which the ranks must agree.
#pragma once

#include <string_view>

#include "lockstep/comm/capabilities.h"
#include "lockstep/comm/operation.h"
#include "lockstep/core/place.h"

namespace lockstep {

// Throws InvalidArgument that names the operation, the rank and the reason: a root out of range, an operation that the
// type does not support, a size larger than memory, a null pointer to data, or buffers that overlap without being in
// place.
void check_call(const Operation& operation, const Place& place);
void check_allocation(std::size_t bytes, const Place& place);
void check_message(const Message& message, bool is_receive, const Place& place);

// Throws InvalidArgument, the same on all ranks, if the backend does not support the operation, the type, the reduction
// or messages. The text lists the supported ones, and other backends.
void check_capabilities(const Signature& call, const Capabilities& capabilities, std::string_view backend);
void check_capabilities(const Message& message, bool is_receive, const Capabilities& capabilities,
                        std::string_view backend);

}  // namespace lockstep
