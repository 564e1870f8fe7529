// SPDX-License-Identifier: Apache-2.0
// Runs the built command and captures its output.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "cli/files.h"

namespace octavo::cli {

struct Finished {
  int code = -1;  // -1: killed by a signal
  std::string out, err;
};

inline Finished run_program(const std::string& program, const std::vector<std::string>& arguments) {
  const Directory directory;
  const std::string out = directory / "out";
  const std::string err = directory / "err";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
    ::dup2(::open(out.c_str(), kFlags, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), kFlags, 0600), STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

inline Finished octavo_command(const std::vector<std::string>& arguments) {
  return run_program(OCTAVO_COMMAND, arguments);
}

// What the command prints on a terminal, stderr included, with the lines ending as in a file.
inline std::string octavo_on_terminal(const std::vector<std::string>& arguments) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "";
  const std::string other = ::ptsname(terminal);
  std::vector<char*> argv = {const_cast<char*>(OCTAVO_COMMAND)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int shown = ::open(other.c_str(), O_RDWR | O_NOCTTY);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(shown, STDOUT_FILENO);
    ::dup2(shown, STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(shown);
  std::string text;
  char buffer[4096];
  // The last reader sees an error when the child has ended.
  for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  ::close(terminal);
  ::waitpid(child, nullptr, 0);
  std::erase(text, '\r');
  return text;
}

}  // namespace octavo::cli
