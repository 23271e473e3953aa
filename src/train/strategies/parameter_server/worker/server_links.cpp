#include "src/train/strategies/parameter_server/worker/server_links.h"

#include "src/core/process/stop_request.h"

namespace lockstep::train {

// If workers may fail, the link's group of two does not know the tasks.
template <typename Call> auto ServerLinks::over_link(std::size_t server, const Call& call) const {
  const Link& link = job_.links[server];
  if (!job_.options.allow_worker_failures) return call(link);
  const auto text = [&](const char* what, const std::exception& error) {
    return fmt::format("{}: {}: {} {}: {}", kParameterServer, name_of(job_.tasks.own), what,
                       job_.tasks.describe(job_.tasks.servers[server]), error.what());
  };
  try {
    return call(link);
  } catch (const PeerLost& error) {
    throw PeerLost("{}", text("lost", error));
  } catch (const TimeoutError& error) {
    throw TimeoutError("{}", text("waited too long for", error));
  } catch (const MismatchError& error) {
    throw MismatchError("{}", text("disagrees with", error));
  }
}

void ServerLinks::notify(std::size_t server, const Notice& notice) {
  notices_[server] = notice;
  over_link(server, [&](const Link& link) {
    link.group->send(&notices_[server], sizeof(Notice), DType::kUInt8, link.peer, kNoticeTag);
  });
}

void ServerLinks::notify_all(const Notice& notice) {
  for (std::size_t server = 0; server < size(); ++server) notify(server, notice);
}

void ServerLinks::send_rest(const std::vector<std::byte>& rest) {
  if (rest.empty()) return;
  over_link(0,
            [&](const Link& link) { link.group->send(rest.data(), rest.size(), DType::kUInt8, link.peer, kRestTag); });
  sent_ += rest.size();
}

void ServerLinks::send_state(std::size_t server, const std::string& state) {
  over_link(server, [&](const Link& link) { send_text(link, state, kStateTag); });
  sent_ += state.size();
}

void ServerLinks::send_result(const std::string& result) const {
  for (std::size_t server = 0; server < size(); ++server)
    over_link(server, [&](const Link& link) { send_text(link, result, kResultTag); });
}

Work ServerLinks::send_floats(std::size_t server, const Tensor& floats) {
  const FloatRange& range = job_.layout.servers[server];
  sent_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
  return over_link(server, [&](const Link& link) {
    return link.group->send_async(floats.data<float>() + range.begin, static_cast<std::size_t>(range.count),
                                  DType::kFloat32, link.peer, kFloatsTag);
  });
}

ServerLinks::Works ServerLinks::send_floats(const Tensor& floats) {
  Works works(size());
  for (std::size_t server = 0; server < size(); ++server) works[server].push_back(send_floats(server, floats));
  return works;
}

Work ServerLinks::receive_floats(std::size_t server, const Tensor& floats) {
  const FloatRange& range = job_.layout.servers[server];
  received_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
  return over_link(server, [&](const Link& link) {
    return link.group->recv_async(floats.data<float>() + range.begin, static_cast<std::size_t>(range.count),
                                  DType::kFloat32, link.peer, kFloatsTag, nullptr, patient());
  });
}

Work ServerLinks::receive_answer(std::size_t server, Answer& answer) const {
  return over_link(server, [&](const Link& link) {
    return link.group->recv_async(&answer, sizeof(Answer), DType::kUInt8, link.peer, kAnswerTag, nullptr, patient());
  });
}

ServerLinks::Works ServerLinks::receive_weights(const Tensor& floats, Answer& answer) {
  Works works(size());
  for (std::size_t server = 0; server < size(); ++server) works[server].push_back(receive_floats(server, floats));
  works[0].push_back(receive_answer(0, answer));
  return works;
}

Work ServerLinks::receive_rest(std::vector<std::byte>& rest) {
  if (rest.empty()) return {};
  received_ += rest.size();
  return over_link(0, [&](const Link& link) {
    return link.group->recv_async(rest.data(), rest.size(), DType::kUInt8, link.peer, kRestTag, nullptr, patient());
  });
}

std::string ServerLinks::receive_state(std::size_t server) {
  std::string state = over_link(server, [&](const Link& link) { return receive_text(link, kStateTag, patient()); });
  received_ += state.size();
  return state;
}

float ServerLinks::receive_rate() {
  float lr = 0;
  over_link(0, [&](const Link& link) { link.group->recv(&lr, 1, DType::kFloat32, link.peer, kRateTag, patient()); });
  received_ += sizeof lr;
  return lr;
}

bool ServerLinks::fetch_stop_request(Notice request) {
  remember_stop_signals();
  bool is_requested = is_stop_requested();
  request.is_stop_requested = is_requested ? 1 : 0;
  notify_all(request);
  for (std::size_t server = 0; server < size(); ++server) {
    std::int32_t answer = 0;
    over_link(server,
              [&](const Link& link) { link.group->recv(&answer, 1, DType::kInt32, link.peer, kStopTag, patient()); });
    is_requested = is_requested || answer != 0;
  }
  return is_requested;
}

void ServerLinks::wait(const Works& works) const {
  for (std::size_t server = 0; server < works.size(); ++server)
    for (const Work& work : works[server]) wait(server, work);
}

void ServerLinks::wait(std::size_t server, const Work& work) const {
  over_link(server, [&](const Link&) { work.wait(); });
}

}  // namespace lockstep::train
