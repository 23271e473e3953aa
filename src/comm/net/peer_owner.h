// Whose process is at the other end of a connection within this machine. Jobs without a token know their processes by
// that alone.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace lockstep {

// The user who holds the other end of a connected TCP socket whose both ends are on this machine, by the kernel's table
// of connections (/proc/net/tcp). Of a connection that its other end has not accepted yet, that is root. nullopt: the
// table does not have it, or the other end has closed it.
std::optional<uid_t> owner_of_peer(int fd);

// True when the other end is on this machine and belongs to this process's user, or to root, who may do anything here
// anyway. False when it is on another machine, has closed the connection, or cannot be found. Its address says nothing:
// a process may connect to 127.0.0.1 from any address of its machine.
bool is_of_own_user(int fd);

// True when the job has no token, and the other end is not of its user: it may not take part. LOCKSTEP_INSECURE=1 lets
// it.
bool is_excluded(std::string_view token, int fd);

// Why the job with this token refuses a connection, after its name: "does not know the job's token".
const char* refusal_reason(std::string_view token);

}  // namespace lockstep
