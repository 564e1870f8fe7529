// SPDX-License-Identifier: Apache-2.0
// A calibration as a file:
//   {"octavo_calibration": 1,
//    "entries": [{"name": "k", "format": "e4m3", "granularity": "head", "block_rows": 64,
//                 "shape": [1, 8, 512, 64], "tensors": 3, "amax": [4.1, ...]}]}
// amax has one number per scale of the shape. Nothing in a file is trusted: allocations are bounded
// by the file's size, which is bounded by kLargestFileBytes.
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "files/bounded_json.h"
#include "numeric/checks.h"
#include "numeric/fork_safe.h"
#include "numeric/scale.h"
#include "octavo/file.hpp"

namespace octavo {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kLargestFileBytes = std::size_t{64} << 20;
constexpr int kDeepestNesting = 4;  // file, entries, entry, amax

// Adds the file's name to an error.
Status in_file(const std::string& path, const Status& status) {
  return {status.code(),
          fmt::format("Calibration file '{}': {}", printable(path), status.message())};
}

Result<std::string> read_file(const std::string& path) {
  const Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return in_file(path, file.status());
  Result<std::string> text = file->read_all(kLargestFileBytes);
  return text.ok() ? text : in_file(path, text.status());
}

Status write_file(const std::string& path, const std::string& text) {
  Result<OutputFile> file = OutputFile::open(path);
  if (!file.ok()) return file.status();
  OCTAVO_RETURN_IF_ERROR(file->write(text));
  return file->commit();
}

// Json allocates when it destroys arrays and objects, and terminates the program if that fails. So
// output is formatted without Json containers, and input is parsed into a ParsedJson.
template <class Values>
std::string array_text(const Values& values) {
  std::string text;
  for (const auto value : values) text += (text.empty() ? "" : ", ") + Json(value).dump();
  return "[" + text + "]";
}

std::string entry_text(const Calibration::Entry& entry) {
  return fmt::format(
      "  {{\"name\": {}, \"format\": \"{}\", \"granularity\": \"{}\", \"block_rows\": {},\n"
      "   \"shape\": {}, \"tensors\": {},\n   \"amax\": {}}}",
      Json(entry.name).dump(), name(entry.format), name(entry.granularity), entry.block_rows,
      array_text(entry.shape), entry.tensors, array_text(entry.amax));
}

// A field's value as text, short enough for a sentence.
std::string shown(const Json& value) {
  if (value.is_array() || value.is_object())
    return fmt::format("{} of {}", value.type_name(), value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 40 ? text : text.substr(0, 37) + "...";
}

// Reads the fields of one entry and remembers the first error.
class EntryReader {
 public:
  EntryReader(const Json& json, std::size_t index) : json_(json), index_(index) {}

  Result<Calibration::Entry> read() {
    if (!json_.is_object()) return invalid(where(""), shown(json_), "an object");
    Calibration::Entry entry;
    entry.name = text("name");
    if (entry.name.empty()) fail(".name", "empty", "a name for the tensor");
    entry.format = parsed(parse_dtype(text("format")), ".format");
    if (!is_8bit(entry.format)) fail(".format", name(entry.format), "e4m3, e5m2, int8, sim8");
    entry.granularity = parsed(parse_granularity(text("granularity")), ".granularity");
    entry.block_rows = integer(field("block_rows"), ".block_rows", 1);
    entry.tensors = integer(field("tensors"), ".tensors", 1);
    read_shape(entry);
    read_amax(entry);
    if (!status_.ok()) return status_;
    return entry;
  }

 private:
  std::string where(std::string_view part) const {
    return fmt::format("entries[{}]{}", index_, part);
  }

  void fail(std::string_view part, std::string_view value, std::string_view supported) {
    if (status_.ok()) status_ = invalid(where(part), value, supported);
  }

  const Json& field(const char* key) {
    const auto found = json_.find(key);
    if (found != json_.end()) return *found;
    fail(fmt::format(".{}", key), "missing", "a value");
    static constinit MadeOnce<Json> nothing;
    return nothing.get([] { return Json(); });
  }

  std::string text(const char* key) {
    const Json& value = field(key);
    if (value.is_string()) return value.get<std::string>();
    fail(fmt::format(".{}", key), shown(value), "a string");
    return {};
  }

  template <class T>
  T parsed(const Result<T>& result, std::string_view part) {
    if (result.ok()) return result.value();
    if (status_.ok())
      status_ = Status(result.status().code(),
                       fmt::format("{}: {}", where(part), result.status().message()));
    return {};
  }

  std::int64_t integer(const Json& value, std::string_view part, std::int64_t smallest) {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<std::uint64_t>() >
                            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    if (fits && value.get<std::int64_t>() >= smallest) return value.get<std::int64_t>();
    fail(part, shown(value), fmt::format("whole numbers from {} up", smallest));
    return smallest;
  }

  void read_shape(Calibration::Entry& entry) {
    const Json& shape = field("shape");
    if (!shape.is_array() || shape.size() != 4) return fail(".shape", shown(shape), "4 sizes");
    for (std::size_t i = 0; i < 4; ++i) entry.shape[i] = integer(shape[i], ".shape", 0);
  }

  void read_amax(Calibration::Entry& entry) {
    const Json& amax = field("amax");
    const std::int64_t count = scale_count(entry.shape, entry.granularity, entry.block_rows);
    if (!amax.is_array() || amax.size() != static_cast<std::size_t>(count))
      return fail(".amax", shown(amax),
                  fmt::format("an array of {}, the scales of its shape by {}", count,
                              name(entry.granularity)));
    entry.amax.reserve(amax.size());
    for (const Json& value : amax) {
      const double number = value.is_number() ? value.get<double>() : -1.0;
      if (!(number >= 0.0 && number <= std::numeric_limits<float>::max()))
        return fail(".amax", shown(value), "finite numbers from 0 up");
      entry.amax.push_back(static_cast<float>(number));
    }
  }

  const Json& json_;
  std::size_t index_;
  Status status_;
};

Result<std::vector<Calibration::Entry>> entries_from(const Json& root) {
  if (!root.is_object()) return invalid("the content", "no JSON object", "a calibration in JSON");
  const auto version = root.find("octavo_calibration");
  if (version == root.end() || *version != kVersion)
    return invalid("octavo_calibration", version == root.end() ? "missing" : shown(*version),
                   fmt::format("version {}", kVersion));
  const auto list = root.find("entries");
  if (list == root.end() || !list->is_array())
    return invalid("entries", list == root.end() ? "missing" : shown(*list), "an array");
  std::vector<Calibration::Entry> entries;
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < list->size(); ++i) {
    Result<Calibration::Entry> entry = EntryReader((*list)[i], i).read();
    if (!entry.ok()) return entry.status();
    if (!names.insert(entry->name).second)
      return invalid(fmt::format("entries[{}].name", i), shown(Json(entry->name)),
                     "each name once");
    entries.push_back(std::move(*entry));
  }
  return entries;
}

}  // namespace

Status Calibration::save(const std::string& path) const {
  return without_exceptions([&]() -> Status {
    std::string entries;
    try {
      for (const Entry& entry : entries_)
        entries += (entries.empty() ? "\n" : ",\n") + entry_text(entry);
    } catch (const Json::type_error&) {
      return invalid("name", "text that is not UTF-8", "names in UTF-8");
    }
    return write_file(path, fmt::format("{{\"octavo_calibration\": {},\n \"entries\": [{}]}}\n",
                                        kVersion, entries));
  });
}

Result<Calibration> Calibration::load(const std::string& path) {
  return without_exceptions([&]() -> Result<Calibration> {
    const Result<std::string> text = read_file(path);
    if (!text.ok()) return text.status();
    ParsedJson file;
    const bool parsed = file.parse(*text, kDeepestNesting);
    Result<std::vector<Entry>> entries = parsed ? entries_from(file.root()) : entries_from(Json());
    if (!entries.ok()) return in_file(path, entries.status());
    Calibration calibration;
    calibration.entries_ = std::move(*entries);
    return calibration;
  });
}

}  // namespace octavo
