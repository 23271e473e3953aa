// Abstract sockets whose names are taken: by a process whose queue stays full, or by another user; and messages with
// more than one descriptor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/net/unix_connection.h"
#include "src/comm/rendezvous/unix_rendezvous.h"
#include "tests/support/limits_here.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLong = 20s;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

sockaddr_un address_of(const std::string& name, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Fd listen_on(const std::string& name, int type) {
  socklen_t size = 0;
  const sockaddr_un address = address_of(name, size);
  Fd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0) << std::strerror(errno);
  EXPECT_EQ(listen(listener.get(), 0), 0);
  return listener;
}

// Takes a name and accepts no connection: a blocking connect() waits until this object is destroyed.
class FullDoor {
 public:
  FullDoor(const std::string& name, int type) : listener_(listen_on(name, type)) {
    socklen_t size = 0;
    const sockaddr_un address = address_of(name, size);
    for (int i = 0; i < 100; ++i) {
      waiting_.emplace_back(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (connect(waiting_.back().get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return;
    }
    ADD_FAILURE() << "the queue takes everybody";
  }

  // Returns the error of `attempt`; the test fails if it does not end in time.
  std::string message_before_it_goes(const std::function<void()>& attempt) {
    auto message = std::async(std::launch::async, [&] { return message_of(attempt); });
    EXPECT_EQ(message.wait_for(kLong), std::future_status::ready) << "it waits for as long as the name is held";
    listener_.reset();
    waiting_.clear();
    return message.get();
  }

 private:
  Fd listener_;
  std::vector<Fd> waiting_;
};

// A process of another user that listens on a name until this object is destroyed.
class AnotherUser {
 public:
  AnotherUser(const std::string& name, int type) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      socklen_t size = 0;
      const sockaddr_un address = address_of(name, size);
      const bool listens = setresuid(65534, 65534, 65534) == 0 && [&] {
        const int listener = socket(AF_UNIX, type, 0);
        return bind(listener, reinterpret_cast<const sockaddr*>(&address), size) == 0 && listen(listener, 100) == 0;
      }();
      if (!listens || write(ready[1], "!", 1) != 1) _exit(1);
      pause();
      _exit(0);
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the other user does not listen";
    close(ready[0]);
  }
  ~AnotherUser() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

std::string new_job() {
  static int count = 0;
  return "squatted-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}
std::string name_of(const std::string& job) { return fmt::format("lockstep-{}-{}", geteuid(), job); }

TEST(StoreContact, ANameThatIsHeldEndsAtTheTimeout) {
  const std::string job = new_job();
  FullDoor squatter(name_of(job), SOCK_STREAM);
  EXPECT_THAT(squatter.message_before_it_goes([&] { query_unix_rendezvous(job, 300ms); }),
              AllOf(HasSubstr("did not invite this rank within 0.3 s"), HasSubstr("holds its abstract socket"),
                    HasSubstr("MASTER_ADDR")));
}

TEST(StoreContact, RankZeroSaysThatItsNameIsHeld) {
  const std::string job = new_job();
  FullDoor squatter(name_of(job), SOCK_STREAM);
  EXPECT_THAT(
      squatter.message_before_it_goes([&] {
        UnixRendezvousServer(job, {1, "secret"});
      }),
      AllOf(HasSubstr("rank 0 cannot invite"), HasSubstr("holds its abstract socket"), HasSubstr("MASTER_ADDR")));
}

TEST(StoreContact, AnotherUsersProcessIsRefused) {
  if (!testing::can_be_other_users()) GTEST_SKIP() << "it takes root, outside of user namespaces, to be another user";
  const std::string job = new_job();
  const AnotherUser squatter(name_of(job), SOCK_STREAM);
  EXPECT_THAT(message_of([&] { query_unix_rendezvous(job, kLong); }),
              AllOf(HasSubstr("another user's process"), HasSubstr("MASTER_ADDR")));
  EXPECT_THAT(message_of([&] {
                UnixRendezvousServer(job, {1, "secret"});
              }),
              HasSubstr("another user's process holds its abstract socket"));
}

TEST(UnixConnection, AFullQueueEndsAtTheDeadline) {
  const std::string name = name_of(new_job());
  FullDoor squatter(name, SOCK_SEQPACKET);
  EXPECT_THAT(squatter.message_before_it_goes([&] { connect_to_abstract_name(name, in(300ms)); }),
              HasSubstr("its queue is full"));
}

TEST(UnixConnection, AnotherUsersListenerIsRefused) {
  if (!testing::can_be_other_users()) GTEST_SKIP() << "it takes root, outside of user namespaces, to be another user";
  const std::string name = name_of(new_job());
  const AnotherUser squatter(name, SOCK_SEQPACKET);
  EXPECT_THAT(message_of([&] { connect_to_abstract_name(name, in(kLong)); }), HasSubstr("another user"));
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

void send_descriptors(int link, const std::vector<int>& descriptors) {
  char byte = 'x';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
  cmsghdr* item = CMSG_FIRSTHDR(&header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(item), descriptors.data(), descriptors.size() * sizeof(int));
  ASSERT_EQ(sendmsg(link, &header, MSG_NOSIGNAL), 1) << std::strerror(errno);
}

TEST(UnixConnection, ASecondDescriptorIsRefusedAndNotKept) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd far(ends[0]);
  const UnixConnection near{Fd(ends[1]), "an unauthenticated peer"};
  const std::size_t before = open_descriptors();
  Fd received;
  send_descriptors(far.get(), {0, 0});
  EXPECT_THAT(message_of([&] { near.receive(16, &received, in(kLong)); }), HasSubstr("does not fit"));
  EXPECT_EQ(open_descriptors(), before);
  send_descriptors(far.get(), {0});
  near.receive(16, &received, in(kLong));
  EXPECT_TRUE(received);
  EXPECT_EQ(open_descriptors(), before + 1);
}

}  // namespace
}  // namespace lockstep
