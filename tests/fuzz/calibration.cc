// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the reader of calibration files. A file that it accepts gives usable scales, and is
// the same after saving and loading.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include "fuzz.h"
#include "octavo/octavo.hpp"

namespace octavo::fuzz {
namespace {

// A file in memory: load() and save() take paths.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("calibration", 0)) {
    require(descriptor_ >= 0, "a file in memory");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void fill(const std::uint8_t* data, std::size_t size) const {
    require(ftruncate(descriptor_, 0) == 0, "the file can be emptied");
    require(pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size), "and written");
  }

 private:
  int descriptor_;
};

// save() writes a temporary file next to its target and renames it, so it needs a folder.
class TemporaryFolder {
 public:
  // In memory if possible: save() waits for the disk each time.
  TemporaryFolder() {
    if (mkdtemp(name_) != nullptr) return;
    std::strcpy(name_, "/tmp/octavo_fuzz_XXXXXX");
    require(mkdtemp(name_) != nullptr, "a temporary folder");
  }
  ~TemporaryFolder() {
    unlink(file().c_str());
    rmdir(name_);
  }
  std::string file() const { return std::string(name_) + "/saved.json"; }

 private:
  char name_[32] = "/dev/shm/octavo_fuzz_XXXXXX";
};

void check_saved(const Calibration& calibration) {
  static const TemporaryFolder folder;
  require(calibration.save(folder.file()).ok(), "what was loaded can be saved");
  const Result<Calibration> again = Calibration::load(folder.file());
  require(again.ok(), "what was saved can be loaded");
  require(again->entries().size() == calibration.entries().size(), "with every entry");
  for (std::size_t i = 0; i < calibration.entries().size(); ++i) {
    const Calibration::Entry& a = calibration.entries()[i];
    const Calibration::Entry& b = again->entries()[i];
    require(a.name == b.name && a.format == b.format && a.granularity == b.granularity &&
                a.block_rows == b.block_rows && a.shape == b.shape && a.tensors == b.tensors &&
                a.amax == b.amax,
            "unchanged");
  }
}

}  // namespace
}  // namespace octavo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octavo;
  static const fuzz::MemoryFile file;
  file.fill(data, size);
  const Result<Calibration> loaded = Calibration::load(file.path());
  if (!loaded.ok()) {
    fuzz::require_sentence(loaded.status().message());
    return 0;
  }
  for (const Calibration::Entry& entry : loaded->entries()) {
    const auto scales = loaded->scales(entry.name);
    fuzz::require(scales.ok() && scales->size() == entry.amax.size(), "an entry has scales");
    for (const float scale : *scales)
      fuzz::require(std::isfinite(scale) && scale > 0, "a scale is a positive number");
  }
  fuzz::check_saved(*loaded);
  return 0;
}
