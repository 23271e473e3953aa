// Messages from rank to rank by MPI. Lengths are compared, types are not: MPI does not carry them.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"

namespace lockstep::mpi {

class Messages : public CompletionQueue {
 public:
  Messages(int rank, MPI_Comm communicator, std::function<void()> trouble);

  // At most 2^31 - 1 bytes, tags as large as the communicator allows: else InvalidArgument.
  static Work send(const std::shared_ptr<Messages>& self, const Message& message);
  static Work receive(const std::shared_ptr<Messages>& self, const Message& message);

  bool done(std::uint64_t ticket) override;
  void wait(std::uint64_t ticket) override;
  void order_before(std::uint64_t ticket, Stream&) override { wait(ticket); }

 private:
  struct Pending {
    Message message;
    bool is_receive;
    MPI_Request request;
    bool is_waited_for = false;
    std::string describe() const { return is_receive ? describe_receive(message) : describe_send(message); }
  };

  std::uint64_t start(const Message& message, bool is_receive);
  void check_size(const Message& message, const std::string& what) const;
  // Throws when the message was not what the receiver asked for.
  void complete(std::uint64_t ticket, const MPI_Status& status);

  int rank_;
  MPI_Comm communicator_;
  std::function<void()> trouble_;
  int highest_tag_ = 32767;
  std::mutex mutex_;  // guards what follows; never held while waiting
  std::uint64_t last_ticket_ = 0;
  std::map<std::uint64_t, Pending> pending_;
};

}  // namespace lockstep::mpi
