// SPDX-License-Identifier: Apache-2.0
#include "evolve/isolation/isolate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>

#include "evolve/isolation/sandbox.h"

namespace octavo::evolve {
namespace {

using Clock = std::chrono::steady_clock;
using End = ChildResult::End;

constexpr int kOutOfMemoryExit = 122, kThrewExit = 123, kNoProgramExit = 124;

// In the child the report's pipe is this descriptor, and all above are closed.
constexpr int kReport = 3;

void close_others() {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, kReport + 1, ~0U, 0) == 0) return;
#endif
  constexpr int kMost = 4096;
  for (int i = kReport + 1; i < kMost; ++i) close(i);
}

void write_all(int to, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = write(to, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    done += static_cast<std::size_t>(wrote);
  }
}

struct Pipe {
  int read = -1, write = -1;
  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  void close_write() {
    if (write >= 0) close(write);
    write = -1;
  }
  ~Pipe() {
    if (read >= 0) close(read);
    close_write();
  }
};

void make_group() {
  (void)setpgid(0, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGQUIT, SIGCHLD})
    (void)std::signal(signal, SIG_DFL);
}

// Moves the pipe's end to kReport.
void keep_only(int report) {
  if (report != kReport) (void)dup2(report, kReport);
  close_others();
}

void use_null_files() {
  const int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i) (void)dup2(null, i);
  if (null > 2) close(null);
}

// The list of missing protections, a zero byte, and then what the child has to say.
std::string header_of(const std::vector<std::string>& missing) {
  std::string header;
  for (const std::string& one : missing) header += one + "\n";
  return header + '\0';
}

[[noreturn]] void child_of_body(const Limits& limits, const std::function<std::string()>& body,
                                int report) {
  use_null_files();
  keep_only(report);
  std::vector<std::string> missing = enter_sandbox(limits);
  if (limits.untrusted_code && !forbid_calls(kReport))
    missing.emplace_back("a filter of system calls");
  write_all(kReport, header_of(missing));
  try {
    write_all(kReport, body());
  } catch (const std::bad_alloc&) {
    std::_Exit(kOutOfMemoryExit);
  } catch (const std::exception& error) {
    write_all(kReport, error.what());
    std::_Exit(kThrewExit);
  } catch (...) {
    std::_Exit(kThrewExit);
  }
  std::_Exit(0);
}

// The caller's end of a child.
class Child {
 public:
  Child(pid_t id, const Limits& limits) : id_(id), limits_(limits) {}

  // Reads until the child closes the pipe, and feeds it; false if it takes too long or says too
  // much.
  bool read_all(int from, int& to, const std::string& input) {
    std::size_t sent = 0;
    std::array<char, 65536> part;
    if (to >= 0) (void)fcntl(to, F_SETFL, O_NONBLOCK);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(limits_.seconds));
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return timed_out_ = true, false;
      std::array<pollfd, 2> waits{{{from, POLLIN, 0}, {to, POLLOUT, 0}}};
      const int ready = poll(waits.data(), to >= 0 ? 2 : 1, static_cast<int>(left.count()) + 1);
      if (ready < 0 && errno != EINTR) return true;
      if (ready <= 0) continue;
      if (to >= 0 && waits[1].revents != 0) {
        const ssize_t wrote = write(to, input.data() + sent, input.size() - sent);
        if (wrote > 0) sent += static_cast<std::size_t>(wrote);
        if (sent == input.size() || (wrote < 0 && errno != EAGAIN && errno != EINTR)) {
          close(to);
          to = -1;
        }
      }
      if (waits[0].revents == 0) continue;
      const ssize_t got = read(from, part.data(), part.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return true;
      said_.append(part.data(), static_cast<std::size_t>(got));
      if (said_.size() > limits_.output_bytes) return too_long_ = true, false;
    }
  }

  // Waits for the end, which comes at once after the pipe was closed, unless it was closed early.
  ChildResult finish(bool read) {
    ChildResult result;
    if (!read) kill_all();
    int status = 0;
    const auto end = Clock::now() + std::chrono::seconds(2);
    while (waitpid(id_, &status, read ? WNOHANG : 0) == 0) {
      if (Clock::now() > end) {
        timed_out_ = true;
        read = false;
        kill_all();
        continue;
      }
      (void)poll(nullptr, 0, 1);
    }
    const bool others = kill(-id_, 0) == 0;
    kill_all();
    take_missing(result);
    judge(result, status, others);
    return result;
  }

 private:
  void kill_all() const {
    (void)kill(-id_, SIGKILL);
    (void)kill(id_, SIGKILL);
  }

  void take_missing(ChildResult& result) {
    std::size_t end = said_.find('\0');
    if (end == std::string::npos) return;
    std::string_view header = std::string_view(said_).substr(0, end);
    while (!header.empty()) {
      const std::size_t line = header.find('\n');
      result.missing.emplace_back(header.substr(0, line));
      header.remove_prefix(std::min(line, header.size() - 1) + 1);
    }
    said_.erase(0, end + 1);
  }

  void judge(ChildResult& result, int status, bool others) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const auto is = [&result](End end, std::string reason) {
      result.end = end;
      result.reason = std::move(reason);
    };
    const std::size_t mark = said_.rfind(kForbiddenMark);
    if (code == kForbiddenExit && mark != std::string::npos) {
      int number = -1;
      const std::size_t at = mark + sizeof(kForbiddenMark) - 1;
      if (said_.size() >= at + sizeof(number)) std::memcpy(&number, &said_[at], sizeof(number));
      is(End::forbidden_call,
         fmt::format("The child made the forbidden system call {}.", name_of_call(number)));
    } else if (timed_out_ || signal == SIGXCPU) {
      is(End::timed_out, fmt::format("The child ran longer than {} s.", limits_.seconds));
    } else if (too_long_) {
      is(End::too_long, fmt::format("The child wrote more than {} bytes.", limits_.output_bytes));
    } else if (code == kOutOfMemoryExit) {
      is(End::out_of_memory,
         fmt::format("The child needed more than {} bytes of memory.", limits_.memory_bytes));
    } else if (signal == SIGKILL) {
      is(End::out_of_memory, "The child was killed, as the system does when memory runs out.");
    } else if (signal == SIGXFSZ) {
      is(End::forbidden_call, "The child wrote to a file.");
    } else if (signal != 0) {
      is(End::crashed, fmt::format("The child crashed ({}).", strsignal(signal)));
    } else if (others) {
      is(End::left_processes, "The child left processes behind.");
    } else if (code == kThrewExit) {
      is(End::crashed, fmt::format("The child failed: {}.", said_.substr(0, 200)));
    } else if (code != 0) {
      is(End::failed, code == kNoProgramExit
                          ? "The program cannot be run."
                          : fmt::format("The program ended with code {}.", code));
    } else {
      is(End::finished, "The child finished.");
    }
    result.output = std::move(said_);
  }

  pid_t id_;
  Limits limits_;
  std::string said_;
  bool timed_out_ = false, too_long_ = false;
};

ChildResult not_started(std::string_view what) {
  ChildResult result;
  result.reason = fmt::format("No child can be started: {} failed ({}).", what, strerror(errno));
  return result;
}

// A program in the same sandbox. What it prints goes to the pipe, behind the header.
[[noreturn]] void child_of_program(const Limits& limits, const std::vector<std::string>& arguments,
                                   int input, int report, bool both) {
  (void)dup2(input, 0);
  const int null = open("/dev/null", O_RDWR);
  (void)dup2(null, 2);
  keep_only(report);
  const std::vector<std::string> missing = enter_sandbox(limits);
  write_all(kReport, header_of(missing));
  (void)dup2(kReport, 1);
  if (both) (void)dup2(kReport, 2);
  close(kReport);
  if (!limits.directory.empty()) {
    (void)setenv("TMPDIR", limits.directory.c_str(), 1);
    (void)!chdir(limits.directory.c_str());
  }
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  (void)execvp(words[0], words.data());
  std::_Exit(kNoProgramExit);
}

}  // namespace

std::string_view name(ChildResult::End end) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "finished",       "failed",         "crashed",  "timed_out",  "out_of_memory",
      "forbidden_call", "left_processes", "too_long", "not_started"};
  return kNames[static_cast<std::size_t>(end)];
}

ChildResult run_isolated(const Limits& limits, const std::function<std::string()>& body) {
  Pipe report;
  if (!report.open()) return not_started("pipe");
  const pid_t id = fork();
  if (id < 0) return not_started("fork");
  if (id == 0) {
    make_group();
    child_of_body(limits, body, report.write);
  }
  (void)setpgid(id, id);
  report.close_write();
  Child child(id, limits);
  return child.finish(child.read_all(report.read, report.write, ""));
}

ChildResult run_program(const Limits& limits, const std::vector<std::string>& arguments,
                        const std::string& input, bool both) {
  Pipe report, feed;
  if (arguments.empty() || !report.open() || !feed.open()) return not_started("pipe");
  const pid_t id = fork();
  if (id < 0) return not_started("fork");
  if (id == 0) {
    make_group();
    child_of_program(limits, arguments, feed.read, report.write, both);
  }
  (void)setpgid(id, id);
  report.close_write();
  close(feed.read);
  feed.read = -1;
  // A program that ends without reading its input must not end this one.
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  Child child(id, limits);
  ChildResult result = child.finish(child.read_all(report.read, feed.write, input));
  (void)std::signal(SIGPIPE, before);
  return result;
}

}  // namespace octavo::evolve
