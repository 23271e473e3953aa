// A signal for those processes alone that have a handler for it: it would end the others.
#pragma once

#include <sys/types.h>

namespace lockstep::launch {

// To each process of the group that catches `signal`; how many there are.
int signal_those_who_catch(pid_t group, int signal);

}  // namespace lockstep::launch
