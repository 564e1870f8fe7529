// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the folder of the kernel cache. The bytes choose what lies in it: entries, damaged
// entries, links, FIFOs and folders in place of files, other files. Listing, loading, storing and
// removing never fail the program or wait, load only whole entries, and change nothing outside.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz.h"
#include "gpu/jit/cubin_cache.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/sha256.h"

namespace octavo::fuzz {
namespace {

namespace fs = std::filesystem;

// A folder with the cache and, beside it, a file that no operation may touch.
class Place {
 public:
  Place() {
    const std::string base = fs::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    path_ = base + "/octavo_fuzz_cache_" + std::to_string(::getpid());
    fs::remove_all(path_);
    fs::create_directories(root());
    write(precious(), "precious");
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string root() const { return path_ + "/cache"; }
  std::string precious() const { return path_ + "/precious"; }
  static void write(const std::string& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  bool untouched() const {
    std::ifstream file(precious(), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), {}) == "precious" &&
           std::distance(fs::directory_iterator(path_), {}) == 2;
  }

 private:
  std::string path_;
};

CompiledKernel small_kernel(int number) {
  CompiledKernel kernel;
  kernel.image.assign(64, static_cast<std::byte>(number));
  kernel.name_expression = "sm80::kernel";
  kernel.lowered_name = "_Zkernel";
  kernel.options = "-std=c++20";
  kernel.compiler = "NVRTC 13.0";
  kernel.arch = 80 + number;
  kernel.sha256 = sha256_hex(kernel.image);
  return kernel;
}

std::string key_of(int number) {
  return sha256_hex(std::string_view("key").substr(0, static_cast<std::size_t>(number)));
}

std::string some_bytes(Reader& in) {
  std::string text;
  for (int count = in.below(64); count > 0; --count) text += static_cast<char>(in.byte());
  return text;
}

// A good file, changed in one place, or anything else.
std::string damaged(Reader& in, std::string text) {
  switch (in.below(6)) {
    case 0:
      return some_bytes(in);
    case 1:
      return text.substr(0, static_cast<std::size_t>(in.byte()) % (text.size() + 1));
    case 2:
      return std::string(static_cast<std::size_t>(in.between(1, 200)) << 8, '[');
    case 3:
      text.insert(static_cast<std::size_t>(in.byte()) % (text.size() + 1), some_bytes(in));
      return text;
    case 4:
      if (!text.empty()) text[in.word() % text.size()] = static_cast<char>(in.byte());
      return text;
    default:
      return text;
  }
}

// Puts a file, or something else in its place.
void put(Reader& in, const Place& place, const std::string& path, const std::string& text) {
  std::error_code error;
  switch (in.below(9)) {
    case 1:
      return;  // missing
    case 2:
      fs::create_symlink(place.precious(), path, error);
      return;
    case 3:
      ::mkfifo(path.c_str(), 0600);
      return;
    case 4:
      fs::create_directories(path + "/inside", error);
      return;
    case 5:
      fs::create_symlink("/dev/zero", path, error);
      return;
    case 6:
    case 7:
      Place::write(path, damaged(in, text));
      return;
    default:
      Place::write(path, text);
  }
}

void put_entry(Reader& in, const Place& place, int number) {
  const std::string key = key_of(number), entry = place.root() + "/" + key;
  if (in.one_in(8)) return put(in, place, entry, "");
  ::mkdir(entry.c_str(), 0700);
  const CompiledKernel kernel = small_kernel(in.one_in(8) ? 1 - number : number);
  const std::string image(reinterpret_cast<const char*>(kernel.image.data()), kernel.image.size());
  put(in, place, entry + "/meta.json", meta_text(key, kernel));
  put(in, place, entry + "/kernel.cubin", image);
  if (in.one_in(4)) put(in, place, entry + "/more", "more");
}

void check_load(const CubinCache& cache, int number) {
  const Result<CompiledKernel> kernel = cache.load(key_of(number));
  if (!kernel.ok()) return require_sentence(kernel.status().message());
  require(sha256_hex(kernel->image) == kernel->sha256, "only a whole image is loaded");
}

void check_list(const CubinCache& cache) {
  const auto list = cache.list();
  require(list.ok(), "the entries can be listed");
  for (const CubinCache::Entry& entry : *list)
    if (!entry.status.ok()) require_sentence(entry.status.message());
}

}  // namespace
}  // namespace octavo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octavo;
  using namespace octavo::fuzz;
  Reader in({data, size});
  const Place place;
  const CubinCache cache(place.root());
  for (int number = 0; number < 2; ++number) put_entry(in, place, number);
  if (in.one_in(4)) put(in, place, place.root() + "/.tmp-1-2-3", "left");
  if (in.one_in(4)) put(in, place, place.root() + "/other", "other");
  check_list(cache);
  for (int step = in.below(6); step >= 0; --step) {
    const int number = in.below(2);
    switch (in.below(4)) {
      case 0:
        check_load(cache, number);
        break;
      case 1:
        if (const Status status = cache.store(key_of(number), small_kernel(number)); !status.ok())
          require_sentence(status.message());
        break;
      case 2:
        if (const Result<int> removed = cache.remove(in.one_in(2) ? "" : key_of(number));
            !removed.ok())
          require_sentence(removed.status().message());
        break;
      default:
        check_list(cache);
    }
  }
  require(place.untouched(), "nothing outside the cache changes");
  return 0;
}
