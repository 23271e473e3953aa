#include "src/comm/mpi/mpi_messages.h"

#include <fmt/format.h>

#include <climits>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/mpi/mpi_runtime.h"

namespace lockstep::mpi {

Messages::Messages(int rank, MPI_Comm communicator, std::function<void()> trouble)
    : rank_(rank), communicator_(communicator), trouble_(std::move(trouble)) {
  const auto held = lock();
  int* highest = nullptr;
  int is_known = 0;
  check(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &highest, &is_known), "MPI_Comm_get_attr");
  if (is_known != 0) highest_tag_ = *highest;
}

void Messages::check_size(const Message& message, const std::string& what) const {
  if (message.bytes() > INT_MAX) throw InvalidArgument("{}: backend mpi sends at most {} bytes in a message", what, INT_MAX);
  if (message.tag > highest_tag_) throw InvalidArgument("{}: this MPI has tags up to {}", what, highest_tag_);
}

std::uint64_t Messages::start(const Message& message, bool is_receive) {
  trouble_();
  Pending pending{message, is_receive, MPI_REQUEST_NULL};
  check_size(message, pending.describe());
  const int bytes = static_cast<int>(message.bytes());
  const int peer = message.peer == kAnyRank ? MPI_ANY_SOURCE : message.peer;
  {
    const auto held = lock();
    if (is_receive)
      check(MPI_Irecv(message.data, bytes, MPI_BYTE, peer, message.tag, communicator_, &pending.request), "MPI_Irecv");
    else
      check(MPI_Isend(message.data, bytes, MPI_BYTE, peer, message.tag, communicator_, &pending.request), "MPI_Isend");
  }
  const std::lock_guard own(mutex_);
  pending_[++last_ticket_] = pending;
  return last_ticket_;
}

Work Messages::send(const std::shared_ptr<Messages>& self, const Message& message) { return Work(self, self->start(message, false)); }
Work Messages::receive(const std::shared_ptr<Messages>& self, const Message& message) { return Work(self, self->start(message, true)); }

void Messages::complete(std::uint64_t ticket, const MPI_Status& status) {
  Pending pending;
  {
    const std::lock_guard own(mutex_);
    pending = pending_.at(ticket);
    pending_.erase(ticket);
  }
  if (!pending.is_receive) return;
  int bytes = 0;
  {
    const auto held = lock();
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  }
  if (static_cast<std::size_t>(bytes) != pending.message.bytes())
    throw MismatchError("{}: rank {} sent {} bytes with tag {} to rank {}, which receives {}; type and count must agree",
                        pending.describe(), status.MPI_SOURCE, bytes, pending.message.tag, rank_, pending.message.bytes());
  if (pending.message.sender != nullptr) *pending.message.sender = status.MPI_SOURCE;
}

bool Messages::done(std::uint64_t ticket) {
  MPI_Status status;
  {
    const std::lock_guard own(mutex_);
    const auto found = pending_.find(ticket);
    if (found == pending_.end()) return true;
    if (found->second.is_waited_for) return false;
    trouble_();
    int is_done = 0;
    const auto held = lock();
    check(MPI_Test(&found->second.request, &is_done, &status), "MPI_Test");
    if (is_done == 0) return false;
  }
  complete(ticket, status);
  return true;
}

void Messages::wait(std::uint64_t ticket) {
  Pending* pending = nullptr;
  while (pending == nullptr) {
    {
      const std::lock_guard own(mutex_);
      const auto found = pending_.find(ticket);
      if (found == pending_.end()) return;
      if (!found->second.is_waited_for) {
        pending = &found->second;  // nobody else erases it, nor touches its request
        pending->is_waited_for = true;
      }
    }
    if (pending == nullptr) {  // another thread waits for the same message
      trouble_();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  MPI_Status status;
  const auto timeout = pending->message.timeout;
  if (!mpi::wait(pending->request, std::chrono::steady_clock::now() + timeout, trouble_, &status))
    throw TimeoutError("{}: rank {} waited {:.1f} s; its peer did not come", pending->describe(), rank_,
                       std::chrono::duration<double>(timeout).count());
  complete(ticket, status);
}

}  // namespace lockstep::mpi
