// SPDX-License-Identifier: Apache-2.0
// A main for the fuzz targets if libFuzzer is not available: replays the corpus, then mutates it
// with a seeded generator. It has no coverage feedback; the sanitizers report what it finds.
//
// usage: fuzz_NAME [-runs=N] [-max_total_time=SECONDS] [-seed=N] [-artifact_prefix=P]
//                   FILE|FOLDER...
// The flags are libFuzzer's; unknown ones are ignored, so that one command runs both.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.h"

// Provided by the sanitizers' run time, if there is one.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kLargestInput = 4096;

// The current input, saved when it crashes the program.
const Input* current = nullptr;
std::string artifact_prefix = "./";

void save_current() {
  if (current == nullptr) return;
  const std::string path = artifact_prefix + "crash";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(current->data()),
             static_cast<std::streamsize>(current->size()));
  std::fprintf(stderr, "fuzz: the input is in %s\n", path.c_str());
  current = nullptr;
}

void on_abort(int) { save_current(); }

void run_one(const Input& input) {
  current = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  current = nullptr;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Input mutate(const std::vector<Input>& corpus) {
    Input input = corpus[below(corpus.size())];
    for (std::size_t steps = 1 + below(4); steps > 0; --steps) step(input, corpus);
    if (input.size() > kLargestInput) input.resize(kLargestInput);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }

  void step(Input& input, const std::vector<Input>& corpus) {
    const std::size_t at = below(input.size() + 1);
    switch (below(8)) {
      case 0:  // one bit
        if (at < input.size()) input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:  // one byte
        if (at < input.size()) input[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2:  // cut
        input.resize(at);
        break;
      case 3: {  // remove a range
        const auto end = at + below(std::min<std::size_t>(16, input.size() - at) + 1);
        input.erase(input.begin() + at, input.begin() + end);
        break;
      }
      case 4:  // insert bytes
        for (std::size_t n = 1 + below(8); n > 0; --n)
          input.insert(input.begin() + at, static_cast<std::uint8_t>(random_()));
        break;
      case 5: {  // copy a range of another input
        const Input& other = corpus[below(corpus.size())];
        const std::size_t begin = below(other.size() + 1);
        const std::size_t n = below(std::min<std::size_t>(64, other.size() - begin) + 1);
        input.insert(input.begin() + at, other.begin() + begin, other.begin() + begin + n);
        break;
      }
      case 6: {  // a number at which sizes overflow
        static constexpr std::uint64_t kNumbers[] = {0,   1,          127,        128,
                                                     255, 0xffff,     0x7fffffff, 0x80000000,
                                                     ~0u, 1ull << 62, ~0ull >> 1, ~0ull};
        const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
        for (std::size_t i = 0; i < 8 && at + i < input.size(); ++i)
          input[at + i] = static_cast<std::uint8_t>(number >> (8 * i));
        break;
      }
      default:  // a decimal digit, for text headers
        for (std::size_t i = at; i < input.size(); ++i)
          if (input[i] >= '0' && input[i] <= '9') {
            input[i] = static_cast<std::uint8_t>('0' + below(10));
            break;
          }
    }
  }

  std::mt19937_64 random_;
};

Input read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  long runs = -1;
  double seconds = 0;
  std::uint64_t seed = 1;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string value(word.substr(std::min(word.size(), word.find('=') + 1)));
    if (word.starts_with("-runs=")) runs = std::stol(value);
    if (word.starts_with("-max_total_time=")) seconds = std::stod(value);
    if (word.starts_with("-seed=")) seed = std::stoull(value);
    if (word.starts_with("-artifact_prefix=")) artifact_prefix = value;
    if (word.starts_with("-")) continue;
    if (std::filesystem::is_regular_file(word)) corpus.push_back(read_file(word));
    if (!std::filesystem::is_directory(word)) continue;
    // Sorted, because the order of a folder varies between machines, and a seed must determine the
    // run.
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(word)) files.push_back(entry);
    std::sort(files.begin(), files.end());
    for (const auto& file : files) corpus.push_back(read_file(file));
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: no corpus given; supported: files and folders of inputs.\n");
    return 2;
  }
  std::signal(SIGABRT, on_abort);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(save_current);

  for (const Input& input : corpus) run_one(input);

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Mutator mutator(seed);
  long done = 0;
  while ((runs < 0 || done < runs) && (seconds <= 0 ? runs >= 0 : elapsed() < seconds)) {
    run_one(mutator.mutate(corpus));
    ++done;
  }
  std::printf("fuzz: %zu inputs of the corpus, %ld mutations, %.1f s, nothing found\n",
              corpus.size(), done, elapsed());
  return 0;
}
