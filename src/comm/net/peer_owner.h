// Whose process is at the other end of a connection on loopback. Jobs without a token take part in by that alone.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace lockstep {

// The user who holds the other end of a connected TCP socket on loopback, by the kernel's table of connections (/proc/net/tcp). Of a
// connection that its other end has not accepted yet, that is root. nullopt: the table does not have it, or the other end has closed it.
std::optional<uid_t> owner_of_peer(int fd);

// True when the other end is not on loopback, or belongs to this process's user or to root, who may do anything here anyway. False when it
// has closed the connection.
bool is_of_own_user(int fd);

// True when the job has no token, and the other end is another user's on this machine, or has left: it may not take part.
// LOCKSTEP_INSECURE=1 lets it.
bool is_excluded(std::string_view token, int fd);

}  // namespace lockstep
