// SPDX-License-Identifier: Apache-2.0
// Reads .safetensors files. Every entry of the header is checked, and only the requested tensor is
// read.
#include "tensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "error.h"

namespace octavo::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int kMaxDepth = 3;                            // {name: {field: [value]}}
constexpr std::string_view kDTypes = "F32, F16, BF16, F8_E4M3, F8_E5M2, I8, U8 (sim8)";

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // from the first byte after the header
};

struct Contents {
  std::vector<Entry> entries;
  std::uint64_t data_begin = 0;
};

Result<std::string> header_text(const ByteSource& source) {
  std::array<std::byte, kLengthBytes> prefix{};
  if (source.size() < kLengthBytes) {
    return bad_input("the file", fmt::format("{} bytes long", source.size()),
                     "a whole .safetensors file");
  }
  if (Status status = source.read(0, prefix); !status.ok()) return status;
  std::uint64_t length = 0;
  for (std::size_t i = prefix.size(); i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  }
  if (length > source.size() - kLengthBytes) {
    return bad_input("the header's length",
                     fmt::format("{} in a file of {} bytes", length, source.size()),
                     "headers that end inside the file");
  }
  if (length > kMaxHeaderBytes) {
    return bad_input("the header's length", fmt::format("{}", length), "up to 100000000 bytes");
  }
  std::string text(length, '\0');
  if (Status status = source.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
      !status.ok()) {
    return status;
  }
  return text;
}

// Measures a header without allocating, as the parsed values of a header full of brackets would
// take eighty times its size in memory. It also counts the names, as the parser keeps only one of
// two equal names. (The parser's filter callback could do both, but takes quadratic time.)
class HeaderLimits : public nlohmann::json_sax<json> {
 public:
  bool within() const { return deepest_ <= kMaxDepth; }
  std::size_t names() const { return names_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t&) override {
    names_ += depth_ == 1 ? 1 : 0;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

 private:
  bool enter() {
    deepest_ = std::max(deepest_, ++depth_);
    return within();
  }
  bool leave() {
    --depth_;
    return true;
  }
  int depth_ = 0, deepest_ = 0;
  std::size_t names_ = 0;
};

Result<json> parse_header(std::string_view text) {
  HeaderLimits limits;
  json header(json::value_t::discarded);
  if (json::sax_parse(text, &limits) && limits.within())
    header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) {
    return bad_input("the header", in_quotes(text),
                     "a JSON object {name: {dtype, shape, offsets}}");
  }
  if (limits.names() != header.size()) {
    return bad_input("the header", "one that names a tensor twice", "distinct names");
  }
  return header;
}

// A JSON array of integers from 0 below 2^63.
std::optional<std::vector<std::int64_t>> sizes(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<std::int64_t> values;
  for (const json& value : *found) {
    if (!value.is_number_unsigned()) return std::nullopt;
    const auto size = value.get<std::uint64_t>();
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
    values.push_back(static_cast<std::int64_t>(size));
  }
  return values;
}

Result<Entry> parse_entry(const std::string& tensor_name, const json& fields,
                          std::uint64_t data_bytes) {
  const std::string subject = fmt::format("tensor {}", in_quotes(tensor_name));
  if (!fields.is_object())
    return bad_input(subject, "not an object", "{dtype, shape, data_offsets}");
  const auto dtype = fields.find("dtype");
  if (dtype == fields.end() || !dtype->is_string()) {
    return bad_input("the dtype of " + subject, "missing or no string", kDTypes);
  }
  auto shape = sizes(fields, "shape");
  if (!shape) {
    return bad_input("the shape of " + subject, "missing or malformed",
                     "integers from 0 to 2^63-1");
  }
  const auto offsets = sizes(fields, "data_offsets");
  if (!offsets || offsets->size() != 2) {
    return bad_input("data_offsets of " + subject, "missing or malformed", "[begin, end]");
  }
  const auto begin = static_cast<std::uint64_t>((*offsets)[0]);
  const auto end = static_cast<std::uint64_t>((*offsets)[1]);
  if (begin > end || end > data_bytes) {
    return bad_input("data_offsets of " + subject, fmt::format("[{}, {}]", begin, end),
                     fmt::format("begin <= end <= {}, the bytes after the header", data_bytes));
  }
  return Entry{tensor_name, dtype->get<std::string>(), std::move(*shape), begin, end};
}

Result<Contents> read_contents(const ByteSource& source) {
  const Result<std::string> text = header_text(source);
  if (!text.ok()) return text.status();
  const Result<json> header = parse_header(*text);
  if (!header.ok()) return header.status();
  Contents contents;
  contents.data_begin = kLengthBytes + text->size();
  for (const auto& [tensor_name, fields] : header->items()) {
    if (tensor_name == "__metadata__") continue;
    Result<Entry> entry = parse_entry(tensor_name, fields, source.size() - contents.data_begin);
    if (!entry.ok()) return entry.status();
    contents.entries.push_back(std::move(*entry));
  }
  return contents;
}

std::string list_names(const std::vector<Entry>& entries) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < entries.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + in_quotes(entries[i].name);
  }
  if (entries.size() > kShown) text += fmt::format(" and {} more", entries.size() - kShown);
  return entries.empty() ? "none, the file holds no tensor" : text;
}

Result<Entry> pick(const std::vector<Entry>& entries, std::string_view wanted) {
  if (wanted.empty()) {
    if (entries.size() == 1) return entries.front();
    return bad_input("the tensor's name", "not given", "FILE:NAME with " + list_names(entries));
  }
  for (const Entry& entry : entries) {
    if (entry.name == wanted) return entry;
  }
  return bad_input("the tensor's name", in_quotes(wanted), list_names(entries));
}

Result<DType> dtype_of(const Entry& entry, std::optional<DType> untyped) {
  if (entry.dtype == "F32") return DType::f32;
  if (entry.dtype == "F16") return DType::f16;
  if (entry.dtype == "BF16") return DType::bf16;
  if (entry.dtype == "F8_E4M3") return DType::e4m3;
  if (entry.dtype == "F8_E5M2") return DType::e5m2;
  if (entry.dtype == "I8") return DType::int8;
  if (untyped == DType::boolean && (entry.dtype == "BOOL" || entry.dtype == "U8"))
    return DType::boolean;
  if (entry.dtype == "U8") {
    return untyped == DType::e4m3 || untyped == DType::e5m2 ? *untyped : DType::sim8;
  }
  return bad_input("the dtype of tensor " + in_quotes(entry.name), in_quotes(entry.dtype), kDTypes);
}

std::string_view dtype_text(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::e4m3:
      return "F8_E4M3";
    case DType::e5m2:
      return "F8_E5M2";
    case DType::int8:
      return "I8";
    case DType::sim8:
      return "U8";
    case DType::boolean:
    case DType::int4:
      break;
  }
  return "U8";
}

}  // namespace

Result<HostTensor> read_safetensors(const ByteSource& source, std::string_view wanted,
                                    std::optional<DType> untyped) {
  const Result<Contents> contents = read_contents(source);
  if (!contents.ok()) return contents.status();
  const Result<Entry> entry = pick(contents->entries, wanted);
  if (!entry.ok()) return entry.status();
  const Result<DType> dtype = dtype_of(*entry, untyped);
  if (!dtype.ok()) return dtype.status();
  const Result<std::uint64_t> bytes = contiguous_bytes(entry->shape, *dtype);
  if (!bytes.ok()) return bytes.status();
  if (*bytes != entry->end - entry->begin) {
    return bad_input(fmt::format("data_offsets of tensor {}", in_quotes(entry->name)),
                     fmt::format("[{}, {}]", entry->begin, entry->end),
                     fmt::format("{} bytes, as its shape {} of {} takes", *bytes,
                                 shape_text(entry->shape), entry->dtype));
  }
  HostTensor tensor{*dtype, entry->shape, std::vector<std::byte>(*bytes)};
  if (Status status = source.read(contents->data_begin + entry->begin, tensor.data); !status.ok()) {
    return status;
  }
  return tensor;
}

Result<HostTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view wanted,
                                     std::optional<DType> untyped) {
  return read_safetensors(MemorySource(bytes), wanted, untyped);
}

std::string safetensors_header(const HostTensor& tensor, std::string_view tensor_name) {
  const json header = {{std::string(tensor_name),
                        {{"dtype", dtype_text(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {0, tensor.data.size()}}}}};
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // the data then begins on 8 bytes
  std::string prefix;
  for (std::uint64_t i = 0; i < kLengthBytes; ++i) {
    prefix += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return prefix + text;
}

}  // namespace octavo::cli
