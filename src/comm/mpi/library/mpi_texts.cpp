#include "src/comm/mpi/library/mpi_texts.h"

#include <array>
#include <cstring>
#include <memory>

#include "lockstep/core/error.h"
#include "src/comm/mpi/library/mpi_runtime.h"
#include "src/comm/net/wait_notice.h"

namespace lockstep::mpi {

namespace {

struct Text {
  std::array<char, kMaxTextBytes + 1> bytes{};
};

Text pack(const std::string& text) {
  if (text.size() > kMaxTextBytes)
    throw InvalidArgument("a text has {} bytes; at most {} are supported", text.size(), kMaxTextBytes);
  Text packed;
  std::memcpy(packed.bytes.data(), text.data(), text.size());
  return packed;
}

std::string unpack(const Text& text) { return text.bytes.data(); }

void finish(MPI_Request& request, const char* call, std::chrono::milliseconds timeout) {
  WaitNotice notice;
  const auto say_so = [&] { notice.look([&] { return fmt::format("all ranks of this mpirun job in {}", call); }); };
  if (wait(request, std::chrono::steady_clock::now() + timeout, say_so)) return;
  const std::string reason =
      fmt::format("{} did not end within {} s: did all ranks of this mpirun job start?", call, timeout.count() / 1000);
  give_up(reason);
  throw RendezvousError("{}", reason);
}

}  // namespace

// The buffers of an abandoned call are never freed: MPI may still write to them.
std::vector<std::string> all_gather_texts(const std::string& mine, int ranks, std::chrono::milliseconds timeout) {
  start(ranks);
  auto own = std::make_unique<Text>(pack(mine));
  auto all = std::make_unique<std::vector<Text>>(static_cast<std::size_t>(ranks));
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const auto held = lock();
    check(api().MPI_Iallgather(own.get(), sizeof(Text), MPI_BYTE, all->data(), sizeof(Text), MPI_BYTE, MPI_COMM_WORLD,
                               &request),
          "MPI_Iallgather");
  }
  try {
    finish(request, "MPI_Iallgather", timeout);
  } catch (...) {
    own.release(), all.release();
    throw;
  }
  std::vector<std::string> texts;
  for (const Text& text : *all) texts.push_back(unpack(text));
  return texts;
}

std::string broadcast_text(const std::string& rank_zeros, int ranks, std::chrono::milliseconds timeout) {
  start(ranks);
  auto text = std::make_unique<Text>(pack(rank_zeros));
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const auto held = lock();
    check(api().MPI_Ibcast(text.get(), sizeof(Text), MPI_BYTE, 0, MPI_COMM_WORLD, &request), "MPI_Ibcast");
  }
  try {
    finish(request, "MPI_Ibcast", timeout);
  } catch (...) {
    text.release();
    throw;
  }
  return unpack(*text);
}

}  // namespace lockstep::mpi
