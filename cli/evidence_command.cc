// octavo evidence verify: checks a bundle against its manifest and the kernels of this build.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "error.h"
#include "exit.h"
#include "octavo/bundle.hpp"
#include "options.h"
#include "report.h"

extern char** environ;

namespace octavo::cli {
namespace {

namespace fs = std::filesystem;

// A temporary folder that the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (fs::temp_directory_path() / "octavo_bundle_XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr)
      throw Exit(kExitFailed, "a temporary folder cannot be made.");
    path_ = path;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Unpacks with tar, which rejects names that lead out of the folder.
void unpack(const std::string& archive, const fs::path& folder) {
  const std::string into = folder.string();
  // The archive's name is a separate argument and never passes through a shell.
  const char* const arguments[] = {
      "tar", "-xzf", archive.c_str(), "-C", into.c_str(), "--no-same-owner", nullptr};
  posix_spawn_file_actions_t quiet;
  ::posix_spawn_file_actions_init(&quiet);
  ::posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = -1;
  const int error =
      ::posix_spawnp(&child, "tar", &quiet, nullptr, const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&quiet);
  if (error != 0) throw Exit(kExitFailed, "tar, which unpacks the bundle, cannot be run.");
  ::waitpid(child, &status, 0);
  if (status != 0)
    throw Exit(kExitUsage,
               bad_input("the bundle", in_quotes(archive), "a .tar.gz of repro.sh").message());
}

// The single folder that repro.sh packs, or `folder` itself.
fs::path bundle_in(const fs::path& folder) {
  if (fs::exists(folder / "manifest.yaml")) return folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && fs::exists(entry.path() / "manifest.yaml")) return entry.path();
  return folder;
}

int verify_command(JsonFlag& json, const std::string& bundle) {
  if (!fs::exists(bundle))
    throw Exit(
        kExitUsage,
        bad_input("the bundle", in_quotes(bundle), "a folder or a .tar.gz that exists").message());
  json.open();
  const TemporaryFolder folder;
  const bool packed = !fs::is_directory(bundle);
  if (packed) unpack(bundle, folder.path());
  const fs::path place = packed ? bundle_in(folder.path()) : bundle_in(bundle);
  const BundleReport result = require(verify_bundle(place.string()));
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
  json->add(*verify);
  add_example(*verify, "octavo evidence verify repro_bundle_1a2b3c4_20260101T000000Z.tar.gz");
  verify->callback([bundle, json, &exit_code] { exit_code = verify_command(*json, *bundle); });
}

}  // namespace octavo::cli
