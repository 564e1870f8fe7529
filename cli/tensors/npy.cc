// SPDX-License-Identifier: Apache-2.0
// Reads .npy files, without trusting them: a minimal parser reads the header, a Python dict
// literal, and memory is allocated only after the size has been compared with that of the file.
#include "tensors/npy.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <string_view>

#include "error.h"

namespace octavo::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxRank = 32;
constexpr std::uint64_t kMaxNpyHeaderBytes = 1 << 20;
constexpr std::string_view kNpyDTypes =
    "<f4, <f2, |i1, |u1 (sim8), <V2 or <u2 with --dtype bf16, and |u1 or |V1 with --dtype e4m3 or "
    "e5m2";

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  Result<Header> parse() {
    Header header;
    if (!take('{')) return malformed("'{'");
    while (!take('}')) {
      if (Status status = entry(header); !status.ok()) return status;
      if (take(',')) continue;
      if (!take('}')) return malformed("',' or '}'");
      break;
    }
    skip_space();
    if (at_ != text_.size()) return malformed("nothing after '}'");
    return header;
  }

 private:
  Status malformed(std::string_view expected) const {
    return bad_input(
        "the header",
        fmt::format("malformed at its byte {}, {}", at_, in_quotes(text_.substr(at_, 20))),
        fmt::format("a Python dict, here {}", expected));
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool take(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Result<std::string> string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') return malformed("a string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return malformed("a string that ends");
    const std::string_view content = text_.substr(at_ + 1, end - at_ - 1);
    if (content.find('\\') != std::string_view::npos) return malformed("a string without escapes");
    at_ = end + 1;
    return std::string(content);
  }

  Result<std::int64_t> extent() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '-') return malformed("sizes of 0 and more");
    std::int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) return malformed("sizes below 2^63");
    if (error != std::errc()) return malformed("a size");
    at_ += static_cast<std::size_t>(end - begin);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // as Python 2 wrote long integers
    return value;
  }

  Result<std::vector<std::int64_t>> tuple() {
    if (!take('(')) return malformed("a tuple of sizes");
    std::vector<std::int64_t> values;
    while (!take(')')) {
      Result<std::int64_t> value = extent();
      if (!value.ok()) return value.status();
      if (values.size() == kMaxRank) return malformed("at most 32 dimensions");
      values.push_back(*value);
      if (take(',')) continue;
      if (!take(')')) return malformed("',' or ')'");
      break;
    }
    return values;
  }

  template <class T>
  Status store(std::optional<T>& field, Result<T> value, std::string_view key) {
    if (!value.ok()) return value.status();
    if (field) return malformed(fmt::format("one {} only", in_quotes(key)));
    field = std::move(*value);
    return {};
  }

  Result<bool> boolean() {
    if (take("True")) return true;
    if (take("False")) return false;
    return malformed("True or False");
  }

  Status entry(Header& header) {
    const Result<std::string> key = string();
    if (!key.ok()) return key.status();
    if (!take(':')) return malformed("':'");
    if (*key == "descr") {
      if (take('[')) return bad_input("the dtype", "structured", kNpyDTypes);
      return store(header.descr, string(), *key);
    }
    if (*key == "fortran_order") return store(header.fortran_order, boolean(), *key);
    if (*key == "shape") return store(header.shape, tuple(), *key);
    return bad_input("the header's key", in_quotes(*key), "'descr', 'fortran_order' and 'shape'");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return value;
}

struct Located {
  Header header;
  std::uint64_t data_begin = 0;
};

Result<Located> read_header(const ByteSource& source) {
  constexpr std::uint64_t kShortest = 10;  // magic, version, 16-bit length
  std::array<std::byte, 12> prefix{};
  if (source.size() < kShortest) {
    return bad_input("the file", fmt::format("{} bytes long", source.size()), "a whole .npy file");
  }
  const std::uint64_t available = std::min<std::uint64_t>(prefix.size(), source.size());
  if (Status status = source.read(0, std::span(prefix).first(available)); !status.ok()) {
    return status;
  }
  const std::string_view magic(reinterpret_cast<const char*>(prefix.data()), kMagic.size());
  if (magic != kMagic) return bad_input("the file's beginning", in_quotes(magic), "'\\x93NUMPY'");
  const int major = std::to_integer<int>(prefix[6]);
  const int minor = std::to_integer<int>(prefix[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return bad_input("the .npy version", fmt::format("{}.{}", major, minor), "1.0, 2.0, 3.0");
  }
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  const std::uint64_t header_begin = 8 + length_bytes;
  const std::uint64_t length = little_endian(std::span(prefix).subspan(8, length_bytes));
  if (source.size() < header_begin || length > source.size() - header_begin) {
    return bad_input("the header's length",
                     fmt::format("{} in a file of {} bytes", length, source.size()),
                     "headers that end inside the file");
  }
  if (length > kMaxNpyHeaderBytes) {
    return bad_input("the header's length", fmt::format("{}", length), "up to 1048576 bytes");
  }
  std::string text(length, '\0');
  if (Status status = source.read(header_begin, std::as_writable_bytes(std::span(text)));
      !status.ok()) {
    return status;
  }
  Result<Header> header = HeaderParser(text).parse();
  if (!header.ok()) return header.status();
  return Located{std::move(*header), header_begin + length};
}

// The DType of NumPy's type string, as described in npy.h.
Result<DType> dtype_of(std::string_view descr, std::optional<DType> untyped) {
  const std::string_view bare =
      descr.starts_with('|') || descr.starts_with('<') || descr.starts_with('=') ? descr.substr(1)
                                                                                 : descr;
  const bool float8 = untyped == DType::e4m3 || untyped == DType::e5m2;
  if (descr == "<f4") return DType::f32;
  if (descr == "<f2") return DType::f16;
  if (bare == "i1") return DType::int8;
  if (untyped == DType::boolean && (bare == "b1" || bare == "u1")) return DType::boolean;
  if (bare == "u1") return float8 ? *untyped : DType::sim8;
  if ((bare == "V1" || bare == "f1") && float8) return *untyped;
  if (bare == "V2" || bare == "bfloat16") return DType::bf16;
  if (descr == "<u2" && untyped == DType::bf16) return DType::bf16;
  return bad_input("the dtype", in_quotes(descr), kNpyDTypes);
}

}  // namespace

Result<HostTensor> read_npy(const ByteSource& source, std::optional<DType> untyped) {
  Result<Located> located = read_header(source);
  if (!located.ok()) return located.status();
  const Header& header = located->header;
  if (!header.descr || !header.fortran_order || !header.shape) {
    return bad_input("the header", "incomplete", "one with 'descr', 'fortran_order' and 'shape'");
  }
  const Result<DType> dtype = dtype_of(*header.descr, untyped);
  if (!dtype.ok()) return dtype.status();
  // A transposed array's last dimension is not contiguous, which attention needs; an array of one
  // dimension is the same in both orders.
  if (*header.fortran_order && header.shape->size() > 1) {
    return bad_input("fortran_order", "True", "C order (numpy.ascontiguousarray)");
  }
  const Result<std::uint64_t> bytes = contiguous_bytes(*header.shape, *dtype);
  if (!bytes.ok()) return bytes.status();
  const std::uint64_t present = source.size() - located->data_begin;
  if (*bytes != present) {
    return bad_input("the data",
                     fmt::format("{} bytes long where the shape {} of {} takes {}", present,
                                 shape_text(*header.shape), name(*dtype), *bytes),
                     "files that hold the array and nothing else");
  }
  HostTensor tensor{*dtype, *header.shape, std::vector<std::byte>(*bytes)};
  if (Status status = source.read(located->data_begin, tensor.data); !status.ok()) return status;
  return tensor;
}

Result<HostTensor> parse_npy(std::span<const std::byte> bytes, std::optional<DType> untyped) {
  return read_npy(MemorySource(bytes), untyped);
}

std::string npy_header(const HostTensor& tensor) {
  std::string_view descr = "|V1";  // e4m3, e5m2
  if (tensor.dtype == DType::f32) descr = "<f4";
  if (tensor.dtype == DType::f16) descr = "<f2";
  if (tensor.dtype == DType::int8) descr = "|i1";
  if (tensor.dtype == DType::sim8) descr = "|u1";
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr,
                                 shape_text(tensor.shape));
  constexpr std::size_t kPrefix = 10;
  dict.append(63 - (kPrefix + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace octavo::cli
