// A store of PyTorch as one of Lockstep: the ranks of a group find each other in the store that init_process_group()
// was given, or made.
#pragma once

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/store.h"

namespace lockstep::torch_backend {

// The store in which rank `rank` of a group meets the others, this time: a group that is made again on the same store
// (init_process_group() after destroy_process_group()) has other keys than its predecessor.
std::shared_ptr<Store> meeting_store(c10::intrusive_ptr<c10d::Store> store, int rank);

// A secret that the first rank to arrive makes: without it, no process can pose as a rank.
std::string shared_token(Store& store);

// The address at which ranks on other machines reach this one: by LOCKSTEP_INTERFACE, else that of the route to the
// store's host. Loopback if the store is not on a host, but in a file or in memory.
std::string advertised_address(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace lockstep::torch_backend
