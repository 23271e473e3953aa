// Checks of a call that one rank can make by itself. Backends compare the values on which the ranks must agree.
#pragma once

#include <string_view>

#include "lockstep/comm/capabilities.h"
#include "lockstep/comm/operation.h"
#include "lockstep/core/place.h"

namespace lockstep {

// Throws InvalidArgument that names the operation, the rank and what is wrong: a root out of range, an operation that
// the type does not have, a size beyond memory, a null pointer that would be used, buffers that overlap other than in
// place.
void check_call(const Operation& operation, const Place& place);
void check_allocation(std::size_t bytes, const Place& place);
void check_message(const Message& message, bool is_receive, const Place& place);

// Throws InvalidArgument when the backend lacks the operation, the type, the reduction or messages: the same on all
// ranks. It says what else there is: to call, or to choose as backend.
void check_capabilities(const Signature& call, const Capabilities& capabilities, std::string_view backend);
void check_capabilities(const Message& message, bool is_receive, const Capabilities& capabilities,
                        std::string_view backend);

}  // namespace lockstep
