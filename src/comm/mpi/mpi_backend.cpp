#include "src/comm/mpi/mpi_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "src/comm/call/comm_thread.h"
#include "src/comm/call/continuation.h"
#include "src/comm/call/group_error.h"
#include "src/comm/call/group_gone.h"
#include "src/comm/call/point_to_point.h"
#include "src/comm/call/unregistered_memory.h"
#include "src/comm/mpi/library/mpi_runtime.h"
#include "src/comm/mpi/mpi_channels.h"
#include "src/comm/mpi/mpi_collectives.h"
#include "src/comm/operation/composite.h"
#include "src/comm/rendezvous/group_rendezvous.h"
#include "src/core/base/message_text.h"

namespace lockstep {

namespace {

// State that outlives the backend while an operation of it is under way.
struct MpiGroup {
  MpiGroup(const Place& place, MPI_Comm collectives, MPI_Comm messages, std::size_t most)
      : collectives(place, collectives, most, [this] { throw_if_over("backend mpi"); }),
        channels(place, messages, group_error),
        messages(std::make_shared<PointToPoint>(place, channels)) {}

  void throw_if_over(std::string_view doing) const {
    if (group_error.stands()) throw_group_error(group_error.get(), doing);
  }

  LocalGroupError group_error;
  mpi::Collectives collectives;
  mpi::Channels channels;
  std::shared_ptr<PointToPoint> messages;  // a Work may outlive it; leave() disconnects it from the channels
};

class MpiBackend : public Backend {
 public:
  MpiBackend(const Place& place, std::chrono::milliseconds timeout, std::unique_ptr<MpiGroup> group)
      : timeout_(timeout),
        group_(group.release()),
        composite_(place),
        thread_(std::make_shared<CommThread>([this](const Operation& operation) { execute(operation); })) {}
  // Memory to which MPI may still write is never freed after a failure.
  ~MpiBackend() override {
    leave();
    thread_->stop();
    if (!failed_ && group_->channels.is_idle()) delete group_;
  }

  std::string_view name() const override { return "mpi"; }
  std::string_view transport() const override { return "mpi"; }
  void run(const Operation& operation) override { thread_->run(operation); }
  Work start(const Operation& operation) override {
    try {
      return CommThread::start(thread_, operation);
    } catch (const NoThread& refusal) {
      failed_ = true;
      mpi::give_up(refusal.what());
      throw;
    }
  }
  Work start_chained(const Operation& operation, const Work&) override { return start(operation); }
  void await_idle() noexcept override { thread_->await_idle(); }
  Work send(const Message& message) override { return PointToPoint::send(group_->messages, message); }
  Work receive(const Message& message) override { return PointToPoint::receive(group_->messages, message); }

  Buffer allocate(std::size_t bytes) override {
    Operation operation;
    operation.signature.kind = OperationKind::kAllocate;
    operation.signature.sequence = ++allocations_;
    operation.signature.count = bytes;
    operation.signature.dtype = DType::kUInt8;
    operation.timeout = timeout_;
    thread_->run(operation);
    return allocate_unregistered(bytes);
  }

  void abort(const std::string& reason) override {
    group_->group_error.declare(GroupErrorKind::kPeerLost, "the process group was aborted: " + reason);
    mpi::give_up("the process group was aborted: " + reason);
  }
  void leave() noexcept override {
    group_->messages->leave();
    group_->group_error.declare(GroupErrorKind::kPeerLost, group_gone().what());
  }
  TransportCounters counters() const override { return {}; }

 private:
  void execute(const Operation& operation) {
    group_->throw_if_over(describe(operation.signature, operation.purpose));
    if (operation.chained.run) return run_continuation(operation);
    try {
      if (CompositeCalls::is_composite(operation))
        composite_.run(operation, [this](const Operation& plain) { group_->collectives.execute(plain); });
      else
        group_->collectives.execute(operation);
    } catch (const MismatchError& mismatch) {  // all ranks throw it, and nothing is under way
      group_->group_error.declare(GroupErrorKind::kMismatch, mismatch.what());
      throw;
    } catch (const InvalidArgument&) {
      all_were_refused_ = true;
      throw;
    } catch (...) {
      failed_ = true;
      mpi::give_up(exception_text(std::current_exception()));
      throw;
    }
  }

  // An error of the continuation occurs on this rank only: the others wait until their deadline. That is not so if all
  // ranks refused the call, or this rank is leaving, as nothing is under way then.
  void run_continuation(const Operation& operation) {
    try {
      run_chained(operation, cpu_device().default_stream());
    } catch (...) {
      if (failed_ || all_were_refused_ || group_->group_error.stands()) throw;
      failed_ = true;
      mpi::give_up(fmt::format("{}: {}", describe_chained(operation), exception_text(std::current_exception())));
      throw;
    }
  }

  std::chrono::milliseconds timeout_;
  MpiGroup* group_;
  bool failed_ = false, all_were_refused_ = false;  // all_were_refused_: the last call was one that MPI cannot execute
  CompositeCalls composite_;
  std::uint64_t allocations_ = 0;
  std::shared_ptr<CommThread> thread_;  // last: it executes on the other members
};

constexpr char kRefused = '!';

int rank_in_world() {
  const auto held = mpi::lock();
  int rank = 0;
  mpi::check(mpi::api().MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

// This rank's message to the others: its number in MPI_COMM_WORLD, or why it has none.
std::string introduction(int ranks) {
  try {
    mpi::start(ranks);
    return std::to_string(rank_in_world());
  } catch (const InvalidArgument& refusal) {
    return std::string(1, kRefused) + refusal.what();
  }
}

// Throws the same error on all ranks. Rank 0, which may host the store, throws after the others have read the reason.
[[noreturn]] void refuse(const BackendContext& context, const std::string& reason) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  context.store->set(fmt::format("mpi/received/{}", context.place.rank), "1");
  for (int rank = 1; context.place.rank == 0 && rank < context.place.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    try {
      context.store->get(fmt::format("mpi/received/{}", rank), std::max(left, std::chrono::milliseconds(0)));
    } catch (const Error&) {
      break;  // that rank will find out itself
    }
  }
  throw InvalidArgument("backend mpi: {}", reason);
}

// By rank of the group: the process in MPI_COMM_WORLD. An error of one rank is thrown on all.
std::vector<int> members_of(const BackendContext& context) {
  context.store->set(fmt::format("mpi/{}", context.place.rank), introduction(context.place.world_size));
  std::vector<int> members;
  for (int rank = 0; rank < context.place.world_size; ++rank) {
    const std::string said = await_value(context, rank, fmt::format("mpi/{}", rank));
    if (said[0] == kRefused) refuse(context, fmt::format("rank {}: {}", rank, said.substr(1)));
    members.push_back(std::stoi(said));
    for (int other = 0; other < rank; ++other)
      if (members[static_cast<std::size_t>(other)] == members.back())
        refuse(context, fmt::format("ranks {} and {} are both process {} of MPI; a rank must be a process of its own, "
                                    "and all of one mpirun",
                                    other, rank, members.back()));
  }
  return members;
}

// Collective among the members only. It is never freed, since that would be collective, too.
MPI_Comm make_communicator(const std::vector<int>& members, int tag) {
  const auto held = mpi::lock();
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  mpi::check(mpi::api().MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  mpi::check(mpi::api().MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group),
             "MPI_Group_incl");
  mpi::check(mpi::api().MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &communicator), "MPI_Comm_create_group");
  mpi::check(mpi::api().MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi::api().MPI_Group_free(&group);
  mpi::api().MPI_Group_free(&world);
  return communicator;
}

}  // namespace

void check_started_by_mpi(const Place& place) {
  try {
    mpi::check_started(place.world_size);
  } catch (const InvalidArgument& refusal) {
    throw InvalidArgument("backend mpi: rank {}: {}", place.rank, refusal.what());
  }
}

std::unique_ptr<Backend> make_mpi_backend(const BackendContext& context, std::size_t most) {
  const std::vector<int> members = members_of(context);
  constexpr int kCollectives = 1, kMessages = 2;
  const MPI_Comm collectives = make_communicator(members, kCollectives),
                 messages = make_communicator(members, kMessages);
  return std::make_unique<MpiBackend>(context.place, context.timeout,
                                      std::make_unique<MpiGroup>(context.place, collectives, messages, most));
}

}  // namespace lockstep
