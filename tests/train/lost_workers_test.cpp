// A server of `parameter_server` whose workers may fail. The workers are the test's own messages, so that it decides
// which one is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/parameter_server/server/blockers.h"
#include "tests/support/log_lines.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = ParameterClient::State;

// -- who keeps a worker waiting

std::vector<ParameterClient> clients(const std::vector<std::pair<State, std::int64_t>>& states) {
  std::vector<ParameterClient> all;
  for (const auto& [state, clock] : states) all.push_back({.state = state, .clock = clock});
  return all;
}

TEST(LostWorkers, OnlyTheFurthestBehindBlockAWorkerThatWaits) {
  EXPECT_THAT(blockers_of(1, clients({{State::kPaused, 2}, {State::kWaits, 3}, {State::kComputes, 1}}), {}),
              ElementsAre(2))
      << "worker 0 is a step ahead of worker 2 and may pause";
  EXPECT_THAT(blockers_of(0, clients({{State::kWaits, 4}, {State::kPaused, 3}, {State::kComputes, 3}}), {}),
              ElementsAre(1, 2));
  EXPECT_THAT(
      blockers_of(0, clients({{State::kWaits, 4}, {State::kLost, 1}, {State::kFinished, 1}, {State::kPaused, 2}}), {}),
      ElementsAre(3));
}

TEST(LostWorkers, OnlyWorkerZeroBlocksBeforeTheJobBegins) {
  EXPECT_THAT(
      blockers_of(2, clients({{State::kPaused, 0}, {State::kPaused, 0}, {State::kJoins, 0}}), {.has_begun = false}),
      ElementsAre(0));
}

TEST(LostWorkers, WithBackupWorkersAllBlockThatHaveNotCompletedTheStep) {
  const auto three = clients({{State::kWaits, 5}, {State::kArrived, 5}, {State::kPaused, 4}, {State::kComputes, 2}});
  EXPECT_THAT(blockers_of(0, three, {.has_backup = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(blockers_of(0, clients({{State::kWaits, 5}, {State::kWaits, 5}}), {.has_backup = true}), IsEmpty())
      << "ps:0 has not decided";
}

// -- messages

// Each server has a group with each worker, as in a job that goes on without workers that fail.
ParameterServerJob make_job(const Group& group, int servers) {
  ParameterServerJob job{.options = {.servers = servers, .staleness = 4, .allow_worker_failures = true}};
  job.tasks = TaskTable::gather(group, job.options);
  job.training = training_of_net();
  job.devices = {&cpu_device()};
  job.replica = make_replica(job.training, cpu_device());
  job.layout = lay_out_shards(job.replica.parameters, servers, job.options);
  job.workers = group->split(job.is_server() ? -1 : 0);
  for (const int server : job.tasks.servers)
    for (const int worker : job.tasks.workers) {
      const int rank = group->rank();
      const auto pair = group->split(rank == server || rank == worker ? 0 : -1, rank == server ? 1 : 0);
      if (pair) job.links.push_back({pair, 1 - pair->rank()});
    }
  return job;
}

// A worker's side of one link.
class HandWorker {
 public:
  HandWorker(ParameterServerJob& job, std::size_t server) : job_(job), server_(server) {}

  void notify(Notice::Kind kind) const { send(&(notice_ = {.kind = kind}), sizeof(Notice), DType::kUInt8, kNoticeTag); }
  void send_weights(float value) const {
    const std::vector<float> floats(static_cast<std::size_t>(job_.layout.servers[server_].count), value);
    send(floats.data(), floats.size(), DType::kFloat32, kFloatsTag);
  }
  void send_rest(std::size_t missing = 0) const {
    const std::vector<std::byte> rest = bytes_of(rest_of(job_.replica));
    if (server_ == 0) send(rest.data(), rest.size() - missing, DType::kUInt8, kRestTag);
  }
  void receive_answer() const {
    Answer answer;
    receive(&answer, sizeof answer, DType::kUInt8, kAnswerTag);
  }
  // Requests the weights, and returns the first of them.
  float join() const {
    notify(Notice::Kind::kJoins);
    std::vector<float> floats(static_cast<std::size_t>(job_.layout.servers[server_].count));
    receive(floats.data(), floats.size(), DType::kFloat32, kFloatsTag);
    std::vector<std::byte> rest = bytes_of(rest_of(job_.replica));
    if (server_ == 0) receive_answer(), receive(rest.data(), rest.size(), DType::kUInt8, kRestTag);
    return floats.front();
  }
  // Sends a notice that is too short, with which the link's group ends by a MismatchError.
  void send_nonsense() const { send(&notice_, 1, DType::kUInt8, kNoticeTag); }

 private:
  void send(const void* data, std::size_t count, DType dtype, int tag) const {
    job_.links[server_].group->send(data, count, dtype, job_.links[server_].peer, tag);
  }
  void receive(void* data, std::size_t count, DType dtype, int tag) const {
    job_.links[server_].group->recv(data, count, dtype, job_.links[server_].peer, tag);
  }

  ParameterServerJob& job_;
  const std::size_t server_;
  mutable Notice notice_;
};

// Two workers. Returns what each rank threw; a worker's errors on a link that ends are expected.
std::vector<std::string> run_by_hand(int servers, const std::function<void(ParameterServerJob&, int worker)>& work) {
  return testing::run_ranks(2 + servers, "shm", [&](const Group& group) {
    ParameterServerJob job = make_job(group, servers);
    if (!job.is_server()) return work(job, group->rank());
    make_server(std::move(job))->as<ParameterHolder>()->serve();
  });
}

void wait_until_the_link_ends(const HandWorker& worker) {
  try {
    worker.receive_answer();
  } catch (const Error&) {
    return;  // the server has lost this worker
  }
  ADD_FAILURE() << "the server goes on with this worker";
}

// Its record says for how long it had waited; only a wait of more than a second shows whether that counts.
TEST(LostWorkers, ALostWorkerWaitsNoMore) {
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](const Group& group) {
    ParameterServerJob job = make_job(group, 1);
    if (group->rank() == 0) return;
    if (group->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1300));
      return HandWorker(job, 0).notify(Notice::Kind::kFinished);
    }
    ParameterClients clients(job);
    clients.begin();
    clients[0].state = State::kLost;
    clients[0].waited = std::chrono::hours(1);
    clients.expect_notice(1);
    const ServerEvent event = clients.next({});
    EXPECT_EQ(event.kind, ServerEvent::Kind::kMessage) << event.why;
    EXPECT_EQ(event.worker, 1u);
  }));
}

TEST(LostWorkers, AnyErrorOfAWorkersLinkIsALossUnlessItIsTheLastOne) {
  testing::LogLines log;
  const auto failures = run_by_hand(1, [](ParameterServerJob& job, int worker) {
    const HandWorker own(job, 0);
    if (worker == 0) {
      own.notify(Notice::Kind::kWeights);
      own.send_weights(3), own.send_rest(), own.receive_answer();
    }
    EXPECT_EQ(own.join(), 3) << "worker " << worker;
    job.workers->barrier();
    if (worker == 1) {
      own.send_nonsense(), wait_until_the_link_ends(own);
      job.workers->send(&worker, 1, DType::kInt32, 0);
      return;
    }
    int other = 0;
    job.workers->recv(&other, 1, DType::kInt32, 1);
    EXPECT_EQ(own.join(), 3);
    own.send_nonsense(), wait_until_the_link_ends(own);
  });
  EXPECT_THAT(log.text(), AllOf(HasSubstr("ps:0: worker:1 (rank 1) is lost after step 0, and the job goes on with 1"),
                                HasSubstr("uint8 x 24")));
  EXPECT_THAT(failures[2], HasSubstr("ps:0: worker:0 (rank 0) is lost, and no worker is left"));
}

TEST(LostWorkers, TheWeightsOfAWorkerThatIsLostOnTheWayAreNotTakenOver) {
  testing::LogLines log;
  testing::expect_all_well(run_by_hand(1, [](ParameterServerJob& job, int worker) {
    const HandWorker own(job, 0);
    if (worker == 0) {
      own.notify(Notice::Kind::kWeights);
      own.send_weights(3), own.send_rest(), own.receive_answer();
      own.notify(Notice::Kind::kWeights);
      own.send_weights(7), own.send_rest(/*missing=*/1);
      wait_until_the_link_ends(own);
      job.workers->send(&worker, 1, DType::kInt32, 1);
      return;
    }
    int other = 0;
    job.workers->recv(&other, 1, DType::kInt32, 0);
    EXPECT_EQ(own.join(), 3);
    own.notify(Notice::Kind::kFinished);
  }));
  EXPECT_THAT(log.text(), HasSubstr("with 1 worker and the weights from before those that it was sending: "));
}

TEST(LostWorkers, WeightsThatOtherServersMayHaveTakenOverEndTheJob) {
  const auto failures = run_by_hand(2, [](ParameterServerJob& job, int worker) {
    const HandWorker first(job, 0), second(job, 1);
    if (worker == 1) return wait_until_the_link_ends(second);
    for (const HandWorker* link : {&first, &second}) {
      link->notify(Notice::Kind::kWeights);
      link->send_weights(3), link->send_rest(), link->receive_answer();
    }
    second.notify(Notice::Kind::kWeights);
    second.send_nonsense();
    job.links[1].group->abort("the test's end");
    wait_until_the_link_ends(second);
    job.links[0].group->abort("the test's end");
  });
  EXPECT_THAT(failures[3], AllOf(HasSubstr("ps:1: worker:0 (rank 0) is lost while it sent changed weights"),
                                 HasSubstr("start the job again from its last checkpoint")));
}

TEST(LostWorkers, WithoutTheFirstWeightsThereIsNoJob) {
  const auto failures = run_by_hand(1, [](ParameterServerJob& job, int worker) {
    const HandWorker own(job, 0);
    if (worker == 0) {
      own.notify(Notice::Kind::kWeights);
      own.send_weights(3), own.send_rest(/*missing=*/1);
    }
    wait_until_the_link_ends(own);
  });
  EXPECT_THAT(failures[2], AllOf(HasSubstr("ps:0: worker:0 (rank 0) is lost before its first step"),
                                 HasSubstr("the weights of another worker, which may have loaded no checkpoint, cannot "
                                           "replace them; start the job again")));
}

}  // namespace
}  // namespace lockstep::train
