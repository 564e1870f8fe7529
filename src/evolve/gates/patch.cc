// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/patch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"

namespace octavo::evolve {
namespace {

using Lines = std::vector<std::string_view>;

Lines split(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

Status bad(std::string text) { return {ErrorCode::invalid_argument, std::move(text)}; }

// Shortens a part of a diff to what fits into a message.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 80;
  return printable(text.substr(0, kMost));
}

// Patches are written against these, also while an overlay is in use.
const EmbeddedSource* built_in(std::string_view name) {
  for (const EmbeddedSource& source : detail::built_in_sources())
    if (name == source.name) return &source;
  return nullptr;
}

struct Hunk {
  int number = 0;         // in its file's part of the diff, from 1
  std::size_t begin = 0;  // first line in the old file, from 1
  Lines before, after;    // context and removed lines; context and added lines
};

struct FileDiff {
  std::string name;
  std::vector<Hunk> hunks;
};

// The path of a "---" or "+++" line without its prefixes and what may follow it.
std::string_view path_of(std::string_view line) {
  std::string_view path = line.substr(4);
  path = path.substr(0, path.find('\t'));
  while (path.ends_with(' ') || path.ends_with('\r')) path.remove_suffix(1);
  if (path.starts_with("a/") || path.starts_with("b/")) path.remove_prefix(2);
  if (path.starts_with("src/")) path.remove_prefix(4);
  return path;
}

// Reads "12,7" or "12" after `sign`; false if there is none.
bool read_range(std::string_view& text, char sign, std::size_t& begin, std::size_t& count) {
  if (text.empty() || text.front() != sign) return false;
  text.remove_prefix(1);
  const auto read = [&text](std::size_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
  };
  if (!read(begin)) return false;
  count = 1;
  if (!text.starts_with(',')) return true;
  text.remove_prefix(1);
  return read(count);
}

class Parser {
 public:
  explicit Parser(std::string_view diff) : lines_(split(diff)) {}

  Result<std::vector<FileDiff>> run() {
    std::vector<FileDiff> files;
    while (at_ < lines_.size()) {
      const std::string_view line = lines_[at_];
      if (line.starts_with("--- ")) {
        Result<FileDiff> file = file_diff();
        if (!file.ok()) return file.status();
        files.push_back(std::move(file).value());
        continue;
      }
      OCTAVO_RETURN_IF_ERROR(check_header(line));
      ++at_;
    }
    if (files.empty()) return bad("The patch has no file header (\"--- a/device/...\").");
    return files;
  }

 private:
  // Lines between the files: git's headers, or words, which are ignored.
  static Status check_header(std::string_view line) {
    for (const std::string_view word : {"new file mode", "copy from"})
      if (line.starts_with(word))
        return bad("The patch creates a file; only existing device sources may change.");
    for (const std::string_view word : {"rename from", "rename to"})
      if (line.starts_with(word)) return bad("The patch renames a file.");
    if (line.starts_with("deleted file mode")) return bad("The patch deletes a file.");
    if (line.starts_with("old mode") || line.starts_with("new mode"))
      return bad("The patch changes the mode of a file.");
    if (line.starts_with("GIT binary patch") || line.starts_with("Binary files"))
      return bad("The patch is binary.");
    if (line.starts_with("@@"))
      return bad(fmt::format("The patch has a hunk without a file header: '{}'.", shown(line)));
    return {};
  }

  Result<FileDiff> file_diff() {
    const std::string_view from = path_of(lines_[at_]);
    if (at_ + 1 >= lines_.size() || !lines_[at_ + 1].starts_with("+++ "))
      return bad(fmt::format("The patch has no '+++' line after '{}'.", shown(lines_[at_])));
    const std::string_view to = path_of(lines_[at_ + 1]);
    at_ += 2;
    if (from == "/dev/null")
      return bad(
          fmt::format("The patch creates the file '{}'; only existing device sources may "
                      "change.",
                      shown(to)));
    if (to == "/dev/null") return bad(fmt::format("The patch deletes the file '{}'.", shown(from)));
    if (from != to)
      return bad(fmt::format("The patch renames '{}' to '{}'.", shown(from), shown(to)));
    FileDiff file{std::string(from), {}};
    if (!from.starts_with("device/") || from.find("..") != std::string_view::npos)
      return bad(
          fmt::format("The patch changes '{}', which is outside the device sources.", shown(from)));
    if (built_in(from) == nullptr)
      return bad(fmt::format("The patch changes '{}', and there is no such source.", shown(from)));
    while (at_ < lines_.size() && lines_[at_].starts_with("@@")) {
      Result<Hunk> read = hunk(file);
      if (!read.ok()) return read.status();
      file.hunks.push_back(std::move(read).value());
    }
    if (file.hunks.empty()) return bad(fmt::format("The patch of {} has no hunk.", file.name));
    return file;
  }

  Result<Hunk> hunk(const FileDiff& file) {
    Hunk hunk;
    hunk.number = static_cast<int>(file.hunks.size()) + 1;
    std::string_view header = lines_[at_];
    const auto malformed = [&](std::string_view what) {
      return bad(fmt::format("Hunk {} of {} {}.", hunk.number, file.name, what));
    };
    std::size_t old_lines = 0, new_begin = 0, new_lines = 0;
    header.remove_prefix(2);
    const auto skip_space = [&header] {
      while (header.starts_with(' ')) header.remove_prefix(1);
    };
    skip_space();
    bool valid = read_range(header, '-', hunk.begin, old_lines);
    skip_space();
    valid = valid && read_range(header, '+', new_begin, new_lines);
    skip_space();
    if (!valid || !header.starts_with("@@"))
      return malformed("has a header that is not '@@ -line,count +line,count @@'");
    ++at_;
    if (old_lines > kMostSourceBytes || new_lines > kMostSourceBytes)
      return malformed("is longer than any source");
    while (hunk.before.size() < old_lines || hunk.after.size() < new_lines) {
      if (at_ >= lines_.size()) return malformed("ends before the lines that its header counts");
      const std::string_view line = lines_[at_++];
      // Some programs write an empty line of context without its space.
      const char kind = line.empty() ? ' ' : line.front();
      const std::string_view text = line.empty() ? line : line.substr(1);
      if (kind == '\\') continue;
      if (kind != ' ' && kind != '-' && kind != '+')
        return malformed("has fewer lines than its header counts");
      if (kind != '+') hunk.before.push_back(text);
      if (kind != '-') hunk.after.push_back(text);
    }
    if (hunk.before.size() != old_lines || hunk.after.size() != new_lines)
      return malformed("has other counts of lines than its header");
    while (at_ < lines_.size() && lines_[at_].starts_with('\\')) ++at_;
    if (at_ < lines_.size() && !lines_[at_].empty() &&
        (lines_[at_].front() == '+' || lines_[at_].front() == ' ' ||
         (lines_[at_].front() == '-' && !lines_[at_].starts_with("--- "))))
      return malformed("has more lines than its header counts");
    return hunk;
  }

  Lines lines_;
  std::size_t at_ = 0;
};

bool is_at(const Lines& file, const Lines& lines, std::size_t at) {
  return at + lines.size() <= file.size() &&
         std::equal(lines.begin(), lines.end(), file.begin() + static_cast<std::ptrdiff_t>(at));
}

// The line, from 0, at which a hunk applies.
Result<std::size_t> place_of(const Lines& file, const Hunk& hunk, std::size_t stated,
                             const std::string& name) {
  const Lines& before = hunk.before;
  if (before.empty()) {
    if (stated <= file.size()) return stated;
    return bad(fmt::format("Hunk {} of {} adds lines after line {}, and the file has {}.",
                           hunk.number, name, stated, file.size()));
  }
  if (is_at(file, before, stated)) return stated;
  std::optional<std::size_t> found;
  for (std::size_t at = 0; at + before.size() <= file.size(); ++at) {
    if (!is_at(file, before, at)) continue;
    if (found)
      return bad(
          fmt::format("Hunk {} of {} does not apply at line {}, and its lines occur more "
                      "than once elsewhere.",
                      hunk.number, name, hunk.begin));
    found = at;
  }
  if (found) return *found;
  const auto missing = std::find_if(before.begin(), before.end(), [&file](std::string_view line) {
    return std::find(file.begin(), file.end(), line) == file.end();
  });
  return bad(fmt::format(
      "Hunk {} of {} does not apply at line {}{}.", hunk.number, name, hunk.begin,
      missing == before.end() ? ": its lines do not follow each other there"
                              : fmt::format(": '{}' is not in the file", shown(*missing))));
}

// By how many lines the diffs of one file have moved what follows a line of the original.
class Moves {
 public:
  void add(std::size_t line, std::ptrdiff_t lines) { moves_.emplace_back(line, lines); }
  std::ptrdiff_t at(std::size_t line) const {
    std::ptrdiff_t sum = 0;
    for (const auto& [from, lines] : moves_) sum += from <= line ? lines : 0;
    return sum;
  }

 private:
  std::vector<std::pair<std::size_t, std::ptrdiff_t>> moves_;
};

Result<std::string> patched_text(const std::string& text, const FileDiff& diff, Moves& moves) {
  Lines file = split(text);
  const Moves by_earlier_diffs = moves;
  std::ptrdiff_t moved = 0;  // by the hunks before
  for (const Hunk& hunk : diff.hunks) {
    // A hunk that only adds names the line before it.
    const std::size_t first = hunk.before.empty() ? hunk.begin : hunk.begin - (hunk.begin > 0);
    const auto stated = [&](std::ptrdiff_t by) {
      const std::ptrdiff_t line = static_cast<std::ptrdiff_t>(first) + moved + by;
      return static_cast<std::size_t>(std::max<std::ptrdiff_t>(line, 0));
    };
    // Earlier diffs may be part of what this one was written against, or not.
    std::size_t where = stated(by_earlier_diffs.at(first));
    if (!is_at(file, hunk.before, where)) where = stated(0);
    const Result<std::size_t> at = place_of(file, hunk, where, diff.name);
    if (!at.ok()) return at.status();
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(*at);
    file.erase(begin, begin + static_cast<std::ptrdiff_t>(hunk.before.size()));
    file.insert(file.begin() + static_cast<std::ptrdiff_t>(*at), hunk.after.begin(),
                hunk.after.end());
    const auto longer = static_cast<std::ptrdiff_t>(hunk.after.size()) -
                        static_cast<std::ptrdiff_t>(hunk.before.size());
    moved += longer;
    moves.add(first, longer);
  }
  std::string out;
  for (const std::string_view line : file) {
    out += line;
    out += '\n';
  }
  if (out.size() > kMostSourceBytes)
    return bad(fmt::format("The patch makes {} {} bytes long; supported: up to {}.", diff.name,
                           out.size(), kMostSourceBytes));
  return out;
}

Status check_text(std::string_view diff) {
  if (diff.size() > kMostPatchBytes)
    return bad(
        fmt::format("The patch has {} bytes; supported: up to {}.", diff.size(), kMostPatchBytes));
  for (const char c : diff)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') ||
        static_cast<unsigned char>(c) >= 0x7f)
      return bad(
          fmt::format("The patch has the character 0x{:02x}; supported: ASCII text with "
                      "line feeds.",
                      static_cast<unsigned char>(c)));
  return {};
}

}  // namespace

SourceOverlay Patched::overlay() const {
  SourceOverlay overlay;
  for (const ChangedSource& source : sources) overlay[source.name] = source.after;
  return overlay;
}

Result<Patched> apply_patch(std::string_view diff) {
  if (diff.find_first_not_of(" \t\r\n") == std::string_view::npos) return Patched{};
  OCTAVO_RETURN_IF_ERROR(check_text(diff));
  const Result<std::vector<FileDiff>> files = Parser(diff).run();
  if (!files.ok()) return files.status();
  std::map<std::string, ChangedSource> changed;
  std::map<std::string, Moves> moves;
  for (const FileDiff& file : *files) {
    ChangedSource& source = changed[file.name];
    if (source.name.empty()) {
      source.name = file.name;
      source.before = built_in(file.name)->text;
      source.after = source.before;
    }
    Result<std::string> after = patched_text(source.after, file, moves[file.name]);
    if (!after.ok()) return after.status();
    source.after = std::move(after).value();
  }
  Patched patched;
  for (auto& [name, source] : changed)
    if (source.before != source.after) patched.sources.push_back(std::move(source));
  if (patched.sources.empty()) return bad("The patch changes nothing.");
  return patched;
}

}  // namespace octavo::evolve
