// Runs the built command and captures its output.
#pragma once

#include <fcntl.h>
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

}  // namespace octavo::cli
