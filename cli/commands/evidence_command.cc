// SPDX-License-Identifier: Apache-2.0
// octavo evidence verify: checks a bundle against its manifest and the kernels of this build.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "commands/commands.h"
#include "error.h"
#include "exit.h"
#include "octavo/bundle.hpp"
#include "octavo/file.hpp"
#include "options.h"
#include "report.h"

extern char** environ;

namespace octavo::cli {
namespace {

namespace fs = std::filesystem;

// The output of a child process. More than `most` bytes are an error, and the child is ended.
struct Unpacked {
  std::string bytes;
  bool ok = false;
};

// Decompresses a file with gzip. gzip reads the opened file and not a path, so the file cannot be
// replaced meanwhile.
Unpacked gunzip(const InputFile& file, std::uint64_t most) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Exit(kExitFailed, "a pipe cannot be made.");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, file.descriptor(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const char* const arguments[] = {"gzip", "-dc", nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, "gzip", &actions, nullptr,
                                   const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    throw Exit(kExitFailed, "gzip, which unpacks the bundle, cannot be run.");
  }
  Unpacked unpacked;
  std::array<char, 65536> chunk{};
  while (unpacked.bytes.size() <= most) {
    const ssize_t got = ::read(ends[0], chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    unpacked.bytes.append(chunk.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);  // ends a gzip that is still writing
  int status = -1;
  ::waitpid(child, &status, 0);
  unpacked.ok = status == 0 && unpacked.bytes.size() <= most;
  return unpacked;
}

Bundle read_archive(const std::string& path) {
  const std::string subject = "the bundle " + in_quotes(path);
  const Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) throw Exit(kExitUsage, in_context(subject, file.status()).message());
  // Headers and padding take at most two blocks for each file.
  const Unpacked tar = gunzip(*file, kMostBundleBytes + kMostBundleFiles * 1024);
  if (!tar.ok)
    throw Exit(kExitUsage,
               bad_input("the bundle", in_quotes(path), "a .tar.gz of repro.sh with up to 128 MiB")
                   .message());
  return require(read_bundle_archive(tar.bytes));
}

int verify_command(JsonFlag& json, const std::string& path, const std::string& unpack) {
  std::error_code error;
  if (!fs::exists(path, error))
    throw Exit(
        kExitUsage,
        bad_input("the bundle", in_quotes(path), "a folder or a .tar.gz that exists").message());
  json.open();
  const Bundle bundle =
      fs::is_directory(path, error) ? require(read_bundle_folder(path)) : read_archive(path);
  const BundleReport result = require(verify_bundle(bundle));
  if (result.passed() && !unpack.empty()) require_written(write_bundle(bundle, unpack));
  report(json, render(result), to_json(result));
  return result.passed() ? kExitOk : kExitFailed;
}

}  // namespace

void add_evidence_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("evidence", "Bundles of evidence");
  command->require_subcommand(1);
  CLI::App* verify = command->add_subcommand(
      "verify", "Check a bundle against its manifest and the kernels of this build");
  const auto bundle = std::make_shared<std::string>();
  const auto json = std::make_shared<JsonFlag>();
  verify->add_option("BUNDLE", *bundle, "a folder, or the .tar.gz that repro.sh wrote")->required();
  const auto unpack = std::make_shared<std::string>();
  verify->add_option("--unpack", *unpack, "write the files that were verified into a new folder")
      ->type_name("FOLDER");
  json->add(*verify);
  add_example(*verify, "octavo evidence verify repro_bundle_1a2b3c4_20260101T000000Z.tar.gz");
  verify->callback(
      [bundle, json, unpack, &exit_code] { exit_code = verify_command(*json, *bundle, *unpack); });
}

}  // namespace octavo::cli
