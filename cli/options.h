// SPDX-License-Identifier: Apache-2.0
// The flags that subcommands share, each defined once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/evidence.hpp"
#include "octavo/file.hpp"
#include "octavo/octavo.hpp"

namespace CLI {
class App;
}

namespace octavo::cli {

// "4,8,512,64" -> four integers; the error message names the flag.
Result<std::vector<std::int64_t>> parse_integers(std::string_view flag, std::string_view text,
                                                 std::size_t count, std::string_view form);

struct DeviceFlags {
  void add(CLI::App& app);
  Device open() const;  // also sets the CPU's threads and the emulator's schedule

  std::string device = "auto";
  int threads = 0;
  std::optional<std::uint64_t> schedule{};  // of the emulator
};

// Masks, precision and quantization: the flags of octavo::Options.
struct AttentionFlags {
  void add(CLI::App& app);
  Options options() const;

  std::string causal = "none";
  std::string window;
  std::string precision = "native";
  std::string granularity_qk, granularity_v;
  std::int64_t block_rows = 64, sm_margin = 0;
  float max_error = 0, softcap = 0;
  std::string rule = "amax";
  bool smooth_k = false, hadamard = false, batch_invariant = false, overlap_launch = false;
};

// Problems by name or by size.
struct ShapeFlags {
  enum class Count { one, many };
  void add(CLI::App& app, Count count);
  bool given() const { return !presets.empty() || !shapes.empty(); }
  std::vector<BenchCase> cases() const;  // presets first
  BenchCase single_case() const;

  std::vector<std::string> presets, shapes;
};

// Key/value heads and length, and columns of V, that differ from the queries'.
struct KeyValueFlags {
  void add(CLI::App& app);

  std::optional<std::int64_t> heads, length, head_dim_v;
};

void add_seed(CLI::App& app, std::uint64_t& seed);
void add_dtype(CLI::App& app, std::string& dtype, const std::string& meaning);
void add_example(CLI::App& app, const std::string& line);

// --json FILE; "-" is standard output, and then nothing else is printed there.
class JsonFlag {
 public:
  void add(CLI::App& app);
  void open();  // before the work, so that a bad path costs no time
  bool replaces_text() const { return path_ == "-"; }
  void write(const std::string& json);

 private:
  std::string path_;
  std::optional<OutputFile> file_;
};

// Prints the text unless JSON goes to standard output, and writes the JSON if requested.
void report(JsonFlag& json_flag, const std::string& text, const std::string& json);

}  // namespace octavo::cli
