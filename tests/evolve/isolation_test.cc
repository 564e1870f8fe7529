// SPDX-License-Identifier: Apache-2.0
// Whatever a child does is a verdict, and the caller goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "evolve/isolation/isolate.h"
#include "gpu/temporary_directory.h"

namespace octavo::evolve {
namespace {

using End = ChildResult::End;

bool lacks(const ChildResult& result, const std::string& protection) {
  return std::find(result.missing.begin(), result.missing.end(), protection) !=
         result.missing.end();
}

Limits untrusted() {
  Limits limits;
  limits.untrusted_code = true;
  return limits;
}

TEST(EvolveIsolation, ReturnsWhatTheBodyReturns) {
  const ChildResult result =
      run_isolated({}, [] { return std::string("an answer\0with zero", 19); });
  EXPECT_TRUE(result.finished()) << result.reason;
  EXPECT_EQ(result.output, std::string("an answer\0with zero", 19));
}

TEST(EvolveIsolation, ACrashIsAVerdict) {
  const ChildResult result = run_isolated({}, []() -> std::string {
    (void)std::raise(SIGSEGV);
    return "";
  });
  EXPECT_EQ(result.end, End::crashed);
  EXPECT_EQ(result.reason, "The child crashed (Segmentation fault).");
}

TEST(EvolveIsolation, AnExceptionIsAVerdict) {
  const ChildResult result =
      run_isolated({}, []() -> std::string { throw std::runtime_error("no luck"); });
  EXPECT_EQ(result.end, End::crashed);
  EXPECT_EQ(result.reason, "The child failed: no luck.");
}

TEST(EvolveIsolation, AHangIsAVerdict) {
  Limits limits;
  limits.seconds = 0.05;
  const ChildResult result = run_isolated(limits, []() -> std::string {
    while (true) (void)pause();
  });
  EXPECT_EQ(result.end, End::timed_out);
  EXPECT_EQ(result.reason, "The child ran longer than 0.05 s.");
}

TEST(EvolveIsolation, TooMuchMemoryIsAVerdict) {
  Limits limits;
  limits.memory_bytes = std::uint64_t{4} << 30;
  const ChildResult result = run_isolated(limits, [] {
    const std::vector<char> all(std::size_t{8} << 30, 'x');
    return std::string(all.data(), 1);
  });
  EXPECT_EQ(result.end, End::out_of_memory);
  EXPECT_EQ(result.reason, "The child needed more than 4294967296 bytes of memory.");
}

TEST(EvolveIsolation, ALongAnswerIsAVerdict) {
  Limits limits;
  limits.output_bytes = 1000;
  const ChildResult result = run_isolated(limits, [] { return std::string(100000, 'x'); });
  EXPECT_EQ(result.end, End::too_long);
}

// One fork, which the filter refuses.
TEST(EvolveIsolation, UntrustedCodeMakesNoProcess) {
  const ChildResult result = run_isolated(untrusted(), []() -> std::string {
    const pid_t id = fork();
    if (id == 0) std::_Exit(0);
    return "made a process";
  });
  if (lacks(result, "a filter of system calls")) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result.end, End::forbidden_call) << result.output;
  EXPECT_NE(result.reason.find("clone"), std::string::npos) << result.reason;
}

TEST(EvolveIsolation, UntrustedCodeMakesThreads) {
  const ChildResult result = run_isolated(untrusted(), [] {
    std::string said;
    std::thread([&said] { said = "in a thread"; }).join();
    return said;
  });
  EXPECT_TRUE(result.finished()) << result.reason;
  EXPECT_EQ(result.output, "in a thread");
}

TEST(EvolveIsolation, UntrustedCodeWritesNoFile) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/written";
  const ChildResult result = run_isolated(untrusted(), [&path]() -> std::string {
    return open(path.c_str(), O_WRONLY | O_CREAT, 0600) >= 0 ? "wrote a file" : "could not";
  });
  EXPECT_FALSE(std::filesystem::exists(path));
  if (lacks(result, "a filter of system calls")) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result.end, End::forbidden_call);
  EXPECT_EQ(result.reason, "The child made the forbidden system call openat.");
}

TEST(EvolveIsolation, UntrustedCodeOpensNoSocket) {
  const ChildResult result = run_isolated(untrusted(), [] {
    return std::string(socket(AF_INET, SOCK_STREAM, 0) >= 0 ? "has a socket" : "has none");
  });
  if (lacks(result, "a filter of system calls")) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result.end, End::forbidden_call);
}

// The files of the caller are there, but cannot be changed: only those in its directory.
TEST(EvolveIsolation, AChildWritesInItsDirectoryAlone) {
  const TemporaryDirectory folder, other;
  Limits limits;
  limits.directory = folder.path();
  const ChildResult result = run_isolated(limits, [&] {
    const auto writes = [](const std::string& path) {
      std::ofstream(path) << "x" << std::flush;
      return std::filesystem::exists(path) ? std::string("yes") : std::string("no");
    };
    return writes(folder.path() + "/a") + " " + writes(other.path() + "/a");
  });
  ASSERT_TRUE(result.finished()) << result.reason;
  if (lacks(result, "a read-only view of the files")) GTEST_SKIP() << "no namespaces here";
  EXPECT_EQ(result.output, "yes no");
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/a"));
}

// compute-sanitizer talks to the program that it examines.
TEST(EvolveIsolation, AChildReachesItselfThroughItsOwnNetwork) {
  const ChildResult result = run_isolated({}, [] {
    const int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    if (bind(server, any, size) != 0 || listen(server, 1) != 0) return std::string("cannot listen");
    (void)getsockname(server, any, &size);
    return std::string(connect(client, any, size) == 0 ? "connected" : "cannot connect");
  });
  ASSERT_TRUE(result.finished()) << result.reason;
  EXPECT_EQ(result.output, "connected");
}

// Some drivers do not work in namespaces, and their children are less isolated.
TEST(EvolveIsolation, WhatIsNotIsolatedIsNamed) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/a";
  const auto writes = [&path] {
    std::ofstream(path) << "x" << std::flush;
    return std::string(std::filesystem::exists(path) ? "yes" : "no");
  };
  Limits limits;
  limits.gpu = true;  // other children may write no byte to any file
  limits.isolation = {.own_files = false, .own_network = true};
  const ChildResult files = run_isolated(limits, writes);
  EXPECT_EQ(files.output, "yes");
  EXPECT_TRUE(lacks(files, "a read-only view of the files"));
  limits.isolation.own_network = false;
  const ChildResult neither = run_isolated(limits, writes);
  EXPECT_EQ(neither.missing.size(), 2U);
  EXPECT_TRUE(lacks(neither, "a network namespace of its own"));
}

// A descriptor that the caller has open, of a database perhaps, is not the child's.
TEST(EvolveIsolation, AChildHasNoDescriptorOfItsCaller) {
  const TemporaryDirectory folder;
  const int opened = open((folder.path() + "/open").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(opened, 0);
  const int file = fcntl(opened, F_DUPFD, 10);  // not one that the child uses itself
  const ChildResult result = run_isolated(
      {}, [file] { return std::string(write(file, "x", 1) == 1 ? "wrote" : "could not"); });
  close(file);
  close(opened);
  EXPECT_EQ(result.output, "could not");
}

TEST(EvolveIsolation, ProgramsReadAndPrint) {
  Limits limits;
  const ChildResult result = run_program(limits, {"cat"}, std::string(300000, 'y'));
  EXPECT_TRUE(result.finished()) << result.reason;
  EXPECT_EQ(result.output, std::string(300000, 'y'));
  const ChildResult missing = run_program(limits, {"octavo-no-such-program"});
  EXPECT_EQ(missing.end, End::failed);
  EXPECT_EQ(missing.reason, "The program cannot be run.");
  const ChildResult failed = run_program(limits, {"sh", "-c", "echo why; exit 3"});
  EXPECT_EQ(failed.end, End::failed);
  EXPECT_EQ(failed.reason, "The program ended with code 3.");
  EXPECT_EQ(failed.output, "why\n");
  const ChildResult deaf = run_program(limits, {"true"}, std::string(300000, 'y'));
  EXPECT_TRUE(deaf.finished()) << deaf.reason;
}

TEST(EvolveIsolation, ProcessesLeftBehindAreEnded) {
  const ChildResult result =
      run_program({}, {"sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo started"});
  EXPECT_EQ(result.end, End::left_processes) << result.reason;
  EXPECT_EQ(result.output, "started\n");
}

}  // namespace
}  // namespace octavo::evolve
