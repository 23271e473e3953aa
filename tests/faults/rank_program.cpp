// A rank with given behaviour: rank_program [--spawn N] ACT... ; rank i performs the i-th act, all other ranks the last
// one. An act is words joined by '+': `sleep:200+exit:3`.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/core/error.h"
#include "lockstep/launch/launch.h"

namespace {

void die_by(int signal) {
  std::signal(signal, SIG_DFL);  // a sanitizer would turn it into an exit
  ::raise(signal);
}

void hang() {
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  for (int i = 0; i < 60; ++i) std::this_thread::sleep_for(std::chrono::seconds(1));  // bounded, in case all else fails
}

// Waits until another rank has touched the file.
void await(const std::string& path) {
  for (int i = 0; i < 3000 && ::access(path.c_str(), F_OK) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void print_cores() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof(set), &set);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) std::printf("core %d\n", core);
}

// The environment when the program was loaded, which OpenMP uses, whatever setenv() has changed since.
void print_first_value(const std::string& name) {
  std::ifstream environment("/proc/self/environ", std::ios::binary);
  for (std::string entry; std::getline(environment, entry, '\0');)
    if (entry.rfind(name + "=", 0) == 0) std::printf("at first %s\n", entry.c_str());
}

// Leaves a process for which no one waits and which does not end by itself.
void leave_grandchild(bool quiet) {
  if (::fork() != 0) return;
  if (quiet) {
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
  }
  hang();
  ::_exit(0);
}

// The same, outside of the process group.
void leave_session() {
  if (::fork() != 0) return;
  ::setsid();
  hang();
  ::_exit(0);
}

void print_lines(int count) {
  for (int i = 0; i < count; ++i) std::printf("%099d\n", i);
}

void print_to_both(int count) {
  for (int i = 0; i < count; ++i) {
    std::printf("%s\n", std::string(900, 'x').c_str()), std::fflush(stdout);
    std::fprintf(stderr, "%s\n", std::string(900, 'y').c_str());
  }
}

void say_caught(int) {
  constexpr char kText[] = "caught\n";
  (void)!::write(STDOUT_FILENO, kText, sizeof(kText) - 1);
}

void print_bytes() {
  for (int i = 0; i < 256; ++i) std::putchar(i);
  std::fputs("\n\n", stdout);
  std::fputs(std::string(200'000, 'x').c_str(), stdout);
}

void play(const std::string& act) {
  const std::string word = act.substr(0, act.find(':'));
  const std::string value = act.find(':') == std::string::npos ? "" : act.substr(act.find(':') + 1);
  static const std::map<std::string, void (*)(const std::string&)> kActs = {
      {"exit", [](const std::string& code) { std::fflush(nullptr), ::_exit(std::stoi(code)); }},
      {"sleep", [](const std::string& ms) { std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(ms))); }},
      {"env",
       [](const std::string& name) {
         std::printf("%s=%s\n", name.c_str(), std::getenv(name.c_str()) ? std::getenv(name.c_str()) : "(unset)");
       }},
      {"begin", [](const std::string& name) { print_first_value(name); }},
      {"out", [](const std::string& text) { std::printf("%s\n", text.c_str()); }},
      {"part", [](const std::string& text) { std::printf("%s", text.c_str()), std::fflush(stdout); }},
      {"err", [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }},
      {"flush", [](const std::string&) { std::fflush(stdout); }},
      {"throw", [](const std::string& text) { throw std::runtime_error(text); }},
      {"lost", [](const std::string& text) { throw lockstep::PeerLost("{}", text); }},
      {"segv", [](const std::string&) { die_by(SIGSEGV); }},
      {"kill", [](const std::string&) { die_by(SIGKILL); }},
      {"stop", [](const std::string&) { ::raise(SIGSTOP); }},
      {"hang", [](const std::string&) { hang(); }},
      {"touch", [](const std::string& path) { std::ofstream{path}; }},
      {"await", [](const std::string& path) { await(path); }},
      {"cores", [](const std::string&) { print_cores(); }},
      {"bytes", [](const std::string&) { print_bytes(); }},
      {"lines", [](const std::string& count) { print_lines(std::stoi(count)); }},
      {"both", [](const std::string& count) { print_to_both(std::stoi(count)); }},
      {"catch", [](const std::string& signal) { std::signal(std::stoi(signal), say_caught); }},
      {"leave", [](const std::string&) { leave_session(); }},
      {"flood",
       [](const std::string&) {
         for (int i = 0; i < 50'000'000; ++i) std::puts("flood");
       }},
      {"redraw", [](const std::string& text) { std::printf("\r%s", text.c_str()), std::fflush(stdout); }},
      {"grandchild", [](const std::string&) { leave_grandchild(false); }},
      {"daemon", [](const std::string&) { leave_grandchild(true); }},
      {"cat",
       [](const std::string&) {
         for (std::string line; std::getline(std::cin, line);) std::printf("read %s\n", line.c_str());
       }},
  };
  const auto found = kActs.find(word);
  if (found == kActs.end()) throw lockstep::InvalidArgument("no act '{}'", act);
  found->second(value);
}

int rank_main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  if (rank == nullptr || argc < 2) throw lockstep::InvalidArgument("needs RANK and an act");
  std::string acts = argv[std::min(std::atoi(rank) + 1, argc - 1)];
  for (std::size_t end; !acts.empty(); acts.erase(0, end)) {
    end = std::min(acts.find('+'), acts.size());
    play(acts.substr(0, end));
    if (end < acts.size()) ++end;
  }
  return 0;
}

int program_main(int argc, char** argv) {
  if (argc < 3 || std::string(argv[1]) != "--spawn") return rank_main(argc, argv);
  const int ranks = std::stoi(argv[2]);
  argv[2] = argv[0];
  return lockstep::launch::spawn(ranks, argc - 2, argv + 2, rank_main);
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("rank_program", program_main, argc, argv); }
