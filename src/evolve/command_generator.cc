// SPDX-License-Identifier: Apache-2.0
// Runs a program that proposes candidates. It may take its time and use the network, which a
// language model needs; it gets no file of the run.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "evolve/generator.h"

namespace octavo::evolve {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) == 0) {
      read = ends[0];
      write = ends[1];
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_read();
    close_write();
  }
  void close_read() {
    if (read >= 0) (void)::close(read);
    read = -1;
  }
  void close_write() {
    if (write >= 0) (void)::close(write);
    write = -1;
  }
};

// A program in a process group of its own, so that its children end with it.
class Program {
 public:
  Program(const CommandOptions& options, std::string input)
      : options_(options), input_(std::move(input)) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { end(); }

  // Its output, or why there is none.
  Result<std::string> run() {
    if (in_.write < 0 || out_.read < 0) return failed("has no pipe");
    // Set in the parent's handlers, restored in the child: a program that does not read its input.
    struct sigaction ignore {};
    struct sigaction before {};
    ignore.sa_handler = SIG_IGN;
    (void)::sigaction(SIGPIPE, &ignore, &before);
    Result<std::string> result = start() ? exchange() : failed("cannot be started");
    (void)::sigaction(SIGPIPE, &before, nullptr);
    return result;
  }

 private:
  static Result<std::string> failed(const std::string& what) {
    return Status(ErrorCode::device_error, fmt::format("The generator {}.", what));
  }

  bool start() {
    const char* const command = options_.command.c_str();
    pid_ = ::fork();
    if (pid_ != 0) {
      in_.close_read();
      out_.close_write();
      return pid_ > 0;
    }
    // The child: only async-signal-safe calls.
    (void)::setpgid(0, 0);
    (void)::signal(SIGPIPE, SIG_DFL);
    (void)::dup2(in_.read, STDIN_FILENO);
    (void)::dup2(out_.write, STDOUT_FILENO);
    (void)::execl("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr));
    ::kill(::getpid(), SIGKILL);
    return false;
  }

  // Writes the input while it reads the output: either side may fill its pipe. The answer is
  // complete when the program has ended; what it has started may still hold the pipe open.
  Result<std::string> exchange() {
    (void)::setpgid(pid_, pid_);
    (void)::fcntl(in_.write, F_SETFL, O_NONBLOCK);
    (void)::fcntl(out_.read, F_SETFL, O_NONBLOCK);
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                             std::chrono::duration<double>(options_.time_limit_s));
    std::size_t written = 0;
    std::string output;
    siginfo_t info{};
    for (bool ended = false; !ended;) {
      if (Clock::now() > deadline)
        return failed(fmt::format("did not end within {:g} s", options_.time_limit_s));
      // Not reaped here: until end() its number, which is also that of its group, cannot be given
      // to another process.
      info = {};
      ended = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
              info.si_pid == pid_;
      constexpr int kWaitMs = 10;
      std::array<pollfd, 2> ready = {pollfd{out_.read, POLLIN, 0}, pollfd{in_.write, POLLOUT, 0}};
      (void)::poll(ready.data(), in_.write < 0 ? 1 : 2, ended ? 0 : kWaitMs);
      if (in_.write >= 0 && ready[1].revents != 0) feed(written);
      drain(output);
      if (output.size() > options_.most_bytes)
        return failed(fmt::format("wrote more than {} bytes", options_.most_bytes));
    }
    if (info.si_code != CLD_EXITED)
      return failed(fmt::format("was ended by signal {}", info.si_status));
    if (info.si_status != 0) return failed(fmt::format("ended with exit code {}", info.si_status));
    return output;
  }

  void drain(std::string& output) const {
    std::array<char, 65536> buffer{};
    for (;;) {
      const ssize_t got = ::read(out_.read, buffer.data(), buffer.size());
      if (got <= 0 || output.size() > options_.most_bytes) return;
      output.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }

  void feed(std::size_t& written) {
    const ssize_t sent = ::write(in_.write, input_.data() + written, input_.size() - written);
    if (sent > 0) written += static_cast<std::size_t>(sent);
    const bool refused = sent < 0 && errno != EAGAIN && errno != EINTR;
    if (refused || written == input_.size()) in_.close_write();
  }

  // With whatever it started.
  void end() {
    if (pid_ <= 0) return;
    (void)::kill(-pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  const CommandOptions& options_;
  const std::string input_;
  Pipe in_, out_;
  pid_t pid_ = -1;
};

class CommandGenerator final : public Generator {
 public:
  explicit CommandGenerator(CommandOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "command"; }
  std::vector<Proposal> propose(const Request& request) override {
    const std::string input = document(request.guidance, request.generation, request.count)
                                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const Result<std::string> answer = Program(options_, input).run();
    if (answer.ok()) return proposals_of(*answer, static_cast<std::size_t>(request.count));
    Proposal refusal;
    refusal.refusal = answer.status().message();
    return {refusal};
  }

 private:
  CommandOptions options_;
};

}  // namespace

std::unique_ptr<Generator> command_generator(const CommandOptions& options) {
  return std::make_unique<CommandGenerator>(options);
}

}  // namespace octavo::evolve
