#include "src/comm/net/resolve.h"

#include <fcntl.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

namespace lockstep {

namespace {

struct Answer {
  int failure = 0;
  Addresses addresses;
};

// Shared by the waiting thread and the resolving one; the last one deletes it.
struct Question {
  std::string host, service;
  addrinfo hints{};
  std::mutex mutex;
  std::condition_variable answered;
  std::optional<Answer> answer;
};

Answer ask(const std::string& host, const std::string& service, const addrinfo& hints) {
  addrinfo* list = nullptr;
  const int failure = getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
  return {failure, Addresses(failure == 0 ? list : nullptr)};
}

void ask_aside(const std::shared_ptr<Question>& question) {
  Answer answer = ask(question->host, question->service, question->hints);
  const std::lock_guard lock(question->mutex);
  question->answer = std::move(answer);
  question->answered.notify_all();
}

std::optional<Answer> ask_within(const std::string& host, const std::string& service, const addrinfo& hints,
                                 Deadline deadline) {
  const auto question = std::make_shared<Question>();
  question->host = host;
  question->service = service;
  question->hints = hints;
  try {
    std::thread([question] { ask_aside(question); }).detach();
  } catch (const std::system_error&) {  // no thread could be started
    return ask(host, service, hints);
  }
  std::unique_lock lock(question->mutex);
  question->answered.wait_until(lock, deadline, [&] { return question->answer.has_value(); });
  return std::move(question->answer);
}

// getaddrinfo() reports it as a failure of name resolution if this process cannot open its files.
std::string reason_of(int failure) {
  const Fd probe(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!probe && (errno == EMFILE || errno == ENFILE)) return std::strerror(errno);
  return gai_strerror(failure);
}

}  // namespace

Addresses resolve(const std::string& host, std::uint16_t port, int flags, Deadline deadline, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV | AI_NUMERICHOST;
  const std::string service = std::to_string(port);
  std::optional<Answer> answer = ask(host, service, hints);
  if (answer->failure != 0 && (flags & AI_NUMERICHOST) == 0) {
    hints.ai_flags = flags | AI_NUMERICSERV;
    answer = ask_within(host, service, hints, deadline);
  }
  if (!answer) {
    if (why.empty()) why = "the name server did not answer in time";
    return nullptr;
  }
  if (answer->failure != 0) why = reason_of(answer->failure);
  return std::move(answer->addresses);
}

}  // namespace lockstep
