// Starts ranks from within a program, in the shape of torch.multiprocessing.spawn:
//
//   void train(int rank, int epochs, double rate) { auto group = ls::init_process_group(); ... }
//
//   int main() {
//     auto ranks = ls::launch::spawn(train, std::tuple(10, 0.1), 4, /*join=*/false);
//     ...                                          // the parent's own work
//     while (!ranks.join(std::chrono::seconds(1))) std::puts("still training");
//   }
//
// Each rank is this program, started again with the same command line: it runs main up to the same call of spawn(),
// calls fn(rank, args...) there, and ends as a process, as PyTorch's do; the code after the call is the parent's alone.
// Code before the call runs in the ranks, too (PyTorch's start method "spawn" imports the main module again), so keep
// it short. Calls are told apart by their number in the program: all processes must reach them in the same order. A
// fork without a new program, PyTorch's "fork", is not offered: it breaks GPUs and thread pools.
#pragma once

#include <charconv>
#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::launch {

// The ranks that a spawn() started. Its thread must be the one that called spawn(), which must be the main thread.
class SpawnContext {
 public:
  SpawnContext(SpawnContext&&) noexcept;
  SpawnContext& operator=(SpawnContext&&) noexcept;
  ~SpawnContext();  // as terminate(): ranks do not outlive the object that stands for them

  // The process numbers of the ranks, in the order of the ranks; they may have ended. Empty in a rank, for the calls
  // of spawn() before its own.
  const std::vector<int>& pids() const;

  // Waits until all ranks have ended, at most for `timeout` (nullopt: without a limit). Returns false if some still
  // run. Throws Error with the exit code if a rank failed; then all others have been ended, and stderr has the rank,
  // the cause and its last lines. A second call returns, or throws, the same.
  bool join(std::optional<std::chrono::milliseconds> timeout = {});

  // Ends the ranks that still run: SIGTERM, after five seconds SIGKILL. Blocks for that time, or for 15 s if the process
  // that watches the ranks hangs: SIGKILL then ends it, and the kernel its ranks. Then join() throws.
  void terminate();

 private:
  friend SpawnContext spawn_ranks(const std::function<void(int, const std::vector<std::string>&)>& run,
                                  const std::vector<std::string>& args, int nprocs, bool join);
  struct Job;
  explicit SpawnContext(std::unique_ptr<Job> job);
  std::unique_ptr<Job> job_;
};

// spawn() for arguments that are texts already.
SpawnContext spawn_ranks(const std::function<void(int, const std::vector<std::string>&)>& run,
                         const std::vector<std::string>& args, int nprocs, bool join);

namespace internal {

// The type of an argument in the rank: texts arrive as std::string.
template <typename T> using Sent = std::conditional_t<std::is_convertible_v<const T&, std::string>, std::string, T>;

template <typename T> std::string text_of_argument(const T& value) {
  static_assert(std::is_arithmetic_v<T> || std::is_convertible_v<const T&, std::string>,
                "spawn: an argument travels to another process as text, so it must be a number, bool or string; pass a "
                "file's name for larger data, as a pointer or an object cannot travel");
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "1" : "0";
  } else if constexpr (std::is_arithmetic_v<T>) {
    char digits[64];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
  } else {
    return value;
  }
}

template <typename T> T argument_of(const std::string& text) {
  if constexpr (std::is_same_v<T, std::string>) {
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    return text == "1";
  } else {
    T value{};
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
}

}  // namespace internal

// Runs fn(rank, args...) in `nprocs` processes under lockrun's rules (launch.h): each has its share of the cores or a
// GPU and the environment of a rank, the first failure ends all, and they end when this process does, also by SIGKILL.
// With join, waits for them, and throws Error as SpawnContext::join() does; without, returns at once. `args` are those
// of the parent's call. The value that fn returns is ignored; an exception fails the rank as in run_main().
//
// In a job of another launcher (lockrun, mpirun) this process is a rank already: calls fn with its rank and ends the
// process, too. Throws InvalidArgument for nprocs < 1 or another number than that job's, for a call inside fn, for
// texts that are not UTF-8 or have more than 100,000 bytes together as a JSON text, and if this process has other
// threads already (a tensor operation or process group before the call starts some): ranks die with the thread that
// forked them.
template <typename Fn, typename... Args>
requires std::invocable<Fn&, int, internal::Sent<Args>...> SpawnContext spawn(Fn fn,
                                                                              const std::tuple<Args...>& args = {},
                                                                              int nprocs = 1, bool join = true) {
  std::vector<std::string> texts;
  std::apply([&](const Args&... each) { (texts.push_back(internal::text_of_argument(each)), ...); }, args);
  const auto run = [&fn](int rank, const std::vector<std::string>& given) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      static_cast<void>(fn(rank, internal::argument_of<internal::Sent<Args>>(given.at(I))...));
    }
    (std::index_sequence_for<Args...>());
  };
  return spawn_ranks(run, texts, nprocs, join);
}

}  // namespace lockstep::launch
#pragma GCC visibility pop
