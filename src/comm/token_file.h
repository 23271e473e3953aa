// The file that LOCKSTEP_TOKEN_FILE names.
#pragma once

namespace lockstep {

// A secret that every user of the machine can read is none: says so, in the log. Not in a pod, where the mount's mode is the
// cluster's choice and nobody else is there.
void warn_of_open_token_file();

}  // namespace lockstep
