// SPDX-License-Identifier: Apache-2.0
// Runs what may go wrong in a child process: a candidate's compilation, its kernel, a generator.
// Whatever the child does, the caller gets a verdict and a sentence.
//
// The child is a copy of this process (fork without exec), so it can use every function of the
// library. It has its own process group, no network, no way to write files but in one directory,
// and limits of time and memory, as far as the system allows; `missing` says what it did not allow.
// A process that has used CUDA cannot pass it on to a child: the caller must not open a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evolve {

// The namespaces that a child is given, if the system allows it.
struct Isolation {
  bool own_files = true;    // the caller's files are read-only, but for Limits::directory
  bool own_network = true;  // it reaches nobody but itself
  bool operator==(const Isolation&) const = default;
};

struct Limits {
  double seconds = 60;  // of wall time; four times as many of processor time
  std::uint64_t memory_bytes = std::uint64_t{8} << 30;  // of address space; no limit with a GPU
  std::uint64_t output_bytes = std::uint64_t{16} << 20;
  // The only place where the child may write files; empty: nowhere.
  std::string directory{};
  bool gpu = false;  // the child may open a GPU
  Isolation isolation{};
  // The child runs host code that a candidate wrote: it may not make processes, write files, open
  // sockets, or signal others. A call that tries ends it.
  bool untrusted_code = false;
  bool network = false;  // keeps it, as a generator that asks a service needs it
};

struct ChildResult {
  enum class End : std::uint8_t {
    finished,
    failed,   // a program ended with another code than 0
    crashed,  // a signal
    timed_out,
    out_of_memory,
    forbidden_call,  // of the operating system
    left_processes,  // which were still running when the child had ended
    too_long,        // its output
    not_started,
  };
  End end = End::not_started;
  std::string reason;                // one sentence, also if it finished
  std::string output;                // what `body` returned, or the program printed
  std::vector<std::string> missing;  // protections that this system does not allow
  bool finished() const { return end == End::finished; }
};
std::string_view name(ChildResult::End end);

ChildResult run_isolated(const Limits& limits, const std::function<std::string()>& body);

// Runs a program, found on the PATH, with `input` on its standard input; `output` is what it writes
// to standard output. Standard error is appended to `output` with `both`.
ChildResult run_program(const Limits& limits, const std::vector<std::string>& arguments,
                        const std::string& input = "", bool both = true);

}  // namespace octavo::evolve
