// A worker's messages to and from its servers. Its errors name the server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

class ServerLinks {
 public:
  using Works = std::vector<std::vector<Work>>;  // by server

  // `job` outlives this.
  explicit ServerLinks(const ParameterServerJob& job) : job_(job), notices_(job.links.size()) {}

  std::size_t size() const { return job_.links.size(); }
  std::uint64_t sent() const { return sent_; }  // bytes, without notices and answers
  std::uint64_t received() const { return received_; }

  void notify(std::size_t server, const Notice& notice);
  void notify_all(const Notice& notice);
  void send_rest(const std::vector<std::byte>& rest);  // to ps:0
  void send_state(std::size_t server, const std::string& state);
  void send_result(const std::string& result) const;  // to all
  // The server's part of all floats; `floats` lives until the Work is done.
  Work send_floats(std::size_t server, const Tensor& floats);
  Works send_floats(const Tensor& floats);  // to all
  Work receive_floats(std::size_t server, const Tensor& floats);

  // These wait twice the group's deadline: a server that waits for another worker reports that worker first.
  Work receive_answer(std::size_t server, Answer& answer) const;
  Works receive_weights(const Tensor& floats, Answer& answer);  // of all; the answer is that of ps:0
  Work receive_rest(std::vector<std::byte>& rest);              // of ps:0
  std::string receive_state(std::size_t server);
  float receive_rate();  // of ps:0
  // Whether a server, or this process, is to stop early.
  bool fetch_stop_request(Notice request);

  void wait(const Works& works) const;
  void wait(std::size_t server, const Work& work) const;

 private:
  CallOptions patient() const { return {.timeout = 2 * job_.group().timeout()}; }
  template <typename Call> auto over_link(std::size_t server, const Call& call) const;

  const ParameterServerJob& job_;
  std::vector<Notice> notices_;  // by server
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace lockstep::train
