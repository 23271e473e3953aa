// A program that starts ranks with spawn() of launch/spawn.h: spawn_rank ACT
#include <lockstep/lockstep.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

namespace ls = lockstep;
using namespace std::chrono_literals;

namespace {

void train(int rank, int epochs, double rate) {
  const auto group = ls::init_process_group();
  if (rank == 0) std::printf("%d ranks: %d %g\n", group->world_size(), epochs, rate);
  std::this_thread::sleep_for(1200ms);
}
// docs/launching.md
void do_as_the_page_says() {
  auto ranks = ls::launch::spawn(train, std::tuple(10, 0.1), 2, /*join=*/false);
  while (!ranks.join(std::chrono::seconds(1))) std::puts("still training");
}

void train_with_all(int rank, int epochs, double rate, const std::string& name, bool nesterov) {
  const auto group = ls::init_process_group();
  float sum = static_cast<float>(rank + 1);
  group->all_reduce(std::span(&sum, 1));
  if (rank == 0)
    std::printf("%d ranks: %d %g '%s' %d sum %g\n", group->world_size(), epochs, rate, name.c_str(), nesterov ? 1 : 0,
                static_cast<double>(sum));
}
void sleep_long(int) { std::this_thread::sleep_for(60s); }
void fail_as_one(int rank) {
  if (rank == 1) throw ls::Error("the disk of rank 1 is full");
  std::this_thread::sleep_for(60s);
}

void start_and_join() {
  ls::launch::spawn(train_with_all, std::tuple(7, 0.1, "two words", true), 3);
  std::printf("the parent goes on\n");
}

void start_without_join() {
  auto ranks = ls::launch::spawn([](int) { std::this_thread::sleep_for(500ms); }, {}, 2, /*join=*/false);
  std::printf("%zu ranks, done %d\n", ranks.pids().size(), ranks.join(1ms) ? 1 : 0);
  const bool first = ranks.join(std::chrono::milliseconds::max()), second = ranks.join(1ms);
  std::printf("done %d %d\n", first ? 1 : 0, second ? 1 : 0);
}

// A rank that comes here again has another process number.
void value_of_the_parent() {
  const std::string pid = std::to_string(getpid());
  ls::launch::spawn(
      [](int, const std::string& given) { std::printf("%s", given == std::to_string(getpid()) ? "own\n" : "sent\n"); },
      std::tuple(pid), 1);
}

void start_two_jobs() {
  ls::launch::spawn([](int) { std::printf("first\n"); }, {}, 1);
  auto skipped = ls::launch::spawn([](int, int value) { std::printf("second %d\n", value); }, std::tuple(2), 1, false);
  skipped.join();
  std::printf("end\n");
}

void refuse_and_report() {
  const auto report = [](const std::function<void()>& call) {
    try {
      call();
      std::printf("nothing was thrown\n");
    } catch (const ls::Error& error) {
      std::printf("%s\n", error.what());
    }
  };
  report([] { ls::launch::spawn(sleep_long, {}, 0); });
  report([] { ls::launch::spawn([](int, const std::string&) {}, std::tuple(std::string(200'000, 'x')), 1); });
  report([] { ls::launch::spawn([](int, const std::string&) {}, std::tuple(std::string(60'000, '"')), 1); });
  report([] { ls::launch::spawn([](int, const std::string&) {}, std::tuple(std::string("\xff")), 1); });
  std::thread other([&] { std::this_thread::sleep_for(100ms); });
  report([] { ls::launch::spawn(sleep_long, {}, 2); });
  other.join();
}

// The parent of rank 0 is the supervisor.
void end_job_with_stopped_supervisor() {
  auto ranks = ls::launch::spawn(sleep_long, {}, 2, /*join=*/false);
  std::ifstream status("/proc/" + std::to_string(ranks.pids().front()) + "/stat");
  std::string pid, name, state;
  pid_t supervisor = 0;
  status >> pid >> name >> state >> supervisor;
  if (::kill(supervisor, SIGSTOP) != 0) throw ls::Error("cannot stop process {}", supervisor);
  ranks.terminate();
  try {
    ranks.join(std::chrono::milliseconds::max());
  } catch (const ls::Error& error) {
    std::printf("%s\n", error.what());
  }
}

void nest() {
  ls::launch::spawn([](int) { ls::launch::spawn(sleep_long, {}, 1); }, {}, 1);
}

int run(int, char** argv) {
  static const std::map<std::string, std::function<void()>> kActs = {
      {"page", do_as_the_page_says},
      {"join", start_and_join},
      {"no-join", start_without_join},
      {"value", value_of_the_parent},
      {"two", start_two_jobs},
      {"refusals", refuse_and_report},
      {"stopped", end_job_with_stopped_supervisor},
      {"nested", nest},
      {"fail",
       [] {
         auto ranks = ls::launch::spawn(fail_as_one, {}, 3, /*join=*/false);
         ranks.join();
       }},
      {"leave", [] { ls::launch::spawn(sleep_long, {}, 2, /*join=*/false); }},
      {"wait",
       [] {
         const auto ranks = ls::launch::spawn(sleep_long, {}, 2, /*join=*/false);
         std::printf("started\n");
         std::fflush(stdout);
         std::this_thread::sleep_for(60s);
       }},
  };
  kActs.at(argv[1])();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("spawn_rank", run, argc, argv); }
