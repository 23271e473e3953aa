// Why the system starts no further process or thread, in words: its own are "Resource temporarily unavailable".
#pragma once

#include <string>

namespace lockstep {

// The text of an error number. For EAGAIN also the limits that stand in the way, and what to do. Only of calls that start a process or a
// thread.
std::string why_not_started(int error);

}  // namespace lockstep
