// Finds the owner of the process at the other end of a connection within this machine. Jobs without a token recognise
// their processes only by that.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace lockstep {

// The user who owns the other end of a connected TCP socket, if both ends are on this machine, from the kernel's table
// of connections (/proc/net/tcp). The owner of a connection that has not been accepted yet is root. nullopt: the table
// does not have it, or the other end has closed it.
std::optional<uid_t> owner_of_peer(int fd);

// True if the other end is on this machine and belongs to this process's user, or to root, who may do anything anyway.
// False if it is on another machine, has closed the connection, or cannot be found. The address alone does not tell: a
// process may connect to 127.0.0.1 from any address of its machine.
bool is_of_own_user(int fd);

// True if the job has no token and the other end belongs to another user, so that it may not take part.
// LOCKSTEP_INSECURE=1 allows it.
bool is_excluded(std::string_view token, int fd);

// Why the job with this token refuses a connection; continues a sentence: "does not know the job's token".
const char* refusal_reason(std::string_view token);

}  // namespace lockstep
