// SPDX-License-Identifier: Apache-2.0
// The .npy reader: every version and type it supports, and invalid files.
#include "tensors/npy.h"

#include "cli/files.h"

namespace octavo::cli {
namespace {

using Shape = std::vector<std::int64_t>;

HostTensor read(std::string_view file, std::optional<DType> untyped = {}) {
  Result<HostTensor> tensor = parse_npy(bytes_of(file), untyped);
  EXPECT_TRUE(tensor.ok()) << tensor.status().message();
  return tensor.ok() ? std::move(*tensor) : HostTensor{};
}

void expect_refused(std::string_view file, std::string_view word,
                    std::optional<DType> untyped = {}) {
  const Result<HostTensor> tensor = parse_npy(bytes_of(file), untyped);
  ASSERT_FALSE(tensor.ok()) << "expected a sentence with: " << word;
  EXPECT_EQ(tensor.status().code(), ErrorCode::invalid_argument);
  EXPECT_NE(tensor.status().message().find(word), std::string::npos) << tensor.status().message();
  EXPECT_NE(tensor.status().message().find("; supported: "), std::string::npos)
      << tensor.status().message();
  EXPECT_EQ(tensor.status().message().find('\n'), std::string::npos);
}

TEST(Npy, ReadsEveryVersion) {
  const std::string data = raw<float>({1, -2, 3, 4, 5, 6});
  for (const int major : {1, 2, 3}) {
    const HostTensor tensor = read(npy_bytes(npy_dict("<f4", "(1, 2, 3, 1)"), data, major));
    EXPECT_EQ(tensor.dtype, DType::f32);
    EXPECT_EQ(tensor.shape, (Shape{1, 2, 3, 1}));
    ASSERT_EQ(tensor.data.size(), data.size());
    EXPECT_EQ(std::memcmp(tensor.data.data(), data.data(), data.size()), 0);
  }
}

TEST(Npy, ReadsEveryType) {
  struct Case {
    const char* descr;
    std::optional<DType> untyped;
    DType dtype;
  };
  const std::vector<Case> cases = {
      {"<f4", {}, DType::f32},
      {"<f2", {}, DType::f16},
      {"|i1", {}, DType::int8},
      {"|u1", {}, DType::sim8},
      {"|u1", DType::e4m3, DType::e4m3},
      {"|V1", DType::e5m2, DType::e5m2},
      {"<f1", DType::e4m3, DType::e4m3},
      {"<V2", {}, DType::bf16},
      {"bfloat16", {}, DType::bf16},
      {"<u2", DType::bf16, DType::bf16},
      {"|b1", DType::boolean, DType::boolean},
      {"|u1", DType::boolean, DType::boolean},
      {"<f4", DType::e4m3, DType::f32},  // an explicit type wins
  };
  for (const Case& c : cases) {
    const std::string data(3 * size_bytes(c.dtype), '\x40');
    EXPECT_EQ(read(npy_bytes(npy_dict(c.descr, "(3,)"), data), c.untyped).dtype, c.dtype)
        << c.descr;
  }
}

TEST(Npy, ReadsOddButLegalHeaders) {
  EXPECT_EQ(
      read(npy_bytes("{\"shape\":(2L,3L),\"fortran_order\":False,\"descr\":\"|i1\"}", "abcdef"))
          .shape,
      (Shape{2, 3}));
  EXPECT_EQ(read(npy_bytes(npy_dict("|i1", "()"), "a")).shape, Shape{});
  EXPECT_EQ(read(npy_bytes(npy_dict("<f4", "(2, 0, 5, 64)"), "")).elements(), 0);
  EXPECT_EQ(read(npy_bytes(npy_dict("|i1", "(3,)", "True"), "abc")).shape, Shape{3});
}

TEST(Npy, RefusesTypes) {
  expect_refused(npy_bytes(npy_dict(">f4", "(1,)"), "abcd"), "'>f4'");
  expect_refused(npy_bytes(npy_dict("<f8", "(1,)"), "abcdefgh"), "'<f8'");
  expect_refused(npy_bytes(npy_dict("<u2", "(1,)"), "ab"), "--dtype bf16");
  expect_refused(npy_bytes(npy_dict("|V1", "(1,)"), "a"), "--dtype e4m3");
  expect_refused(npy_bytes(npy_dict("|b1", "(1,)"), "a"), "'|b1'");
  expect_refused(npy_bytes(npy_dict("|V1", "(1,)"), "a"), "'|V1'", DType::bf16);
  expect_refused(npy_bytes(npy_dict("\x01\xff", "(1,)"), "a"), "'\\x01\\xff'");
  expect_refused(
      npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd"),
      "structured");
}

TEST(Npy, RefusesFortranOrder) {
  expect_refused(npy_bytes(npy_dict("|i1", "(2, 2)", "True"), "abcd"), "fortran_order is True");
}

TEST(Npy, RefusesInvalidPreambles) {
  const std::string whole = npy_bytes(npy_dict("|i1", "(2,)"), "ab");
  expect_refused("", "0 bytes");
  expect_refused(whole.substr(0, 9), "9 bytes");
  expect_refused("PK\x03\x04" + whole.substr(4), "beginning");
  for (const char version : {'\0', '\x04', '\xff'}) {
    std::string other = whole;
    other[6] = version;
    expect_refused(other, "version");
  }
  std::string minor = whole;
  minor[7] = 1;
  expect_refused(minor, "version is 1.1");
  std::string v2 = npy_bytes(npy_dict("|i1", "(2,)"), "ab", 2);
  expect_refused(v2.substr(0, 11), "header");
  v2.replace(8, 4, "\xff\xff\xff\xff");
  expect_refused(v2, "4294967295");
  expect_refused(npy_bytes(std::string((1 << 20) + 1, ' '), "", 2), "1048577");
}

TEST(Npy, RefusesWrongSizes) {
  const std::string dict = npy_dict("<f4", "(2, 2)");
  expect_refused(npy_bytes(dict, std::string(15, 'x')), "15 bytes long");
  expect_refused(npy_bytes(dict, std::string(17, 'x')), "17 bytes long");
  expect_refused(npy_bytes(npy_dict("<f4", "(1099511627776,)"), "abcd"), "4398046511104");
  expect_refused(npy_bytes(npy_dict("<f4", "(4294967296, 4294967296)"), ""), "2^63");
  expect_refused(npy_bytes(npy_dict("<f4", "(0, 4294967296, 4294967296)"), ""), "2^63");
  expect_refused(npy_bytes(npy_dict("<f4", "(2305843009213693952,)"), ""), "2^63");
  expect_refused(npy_bytes(npy_dict("<f4", "(9223372036854775808,)"), ""), "2^63");
  expect_refused(npy_bytes(npy_dict("<f4", "(-1, -4)"), "abcdabcdabcdabcd"), "0 and more");
}

TEST(Npy, RefusesMalformedHeaders) {
  const std::vector<std::string> headers = {
      "",
      "{",
      "}",
      "[]",
      "{'descr'",
      "{'descr': ",
      "{'descr': '<f4",
      "{'descr': '<f4'}",
      "{'descr': '<f4' 'shape': (1,)}",
      "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
      "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} import os",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}}",
  };
  for (const std::string& header : headers) expect_refused(npy_bytes(header, "abcd"), "header");
  std::string many = "(";
  for (int i = 0; i < 33; ++i) many += "1,";
  expect_refused(npy_bytes(npy_dict("<f4", many + ")"), "abcd"), "32 dimensions");
}

TEST(Npy, EveryPrefixAndEveryFlippedByteGivesATensorOrAnError) {
  const std::string whole = npy_bytes(npy_dict("|i1", "(2, 2)"), "abcd");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_npy(bytes_of(std::string_view(whole).substr(0, size))).ok()) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const Result<HostTensor> tensor = parse_npy(bytes_of(damaged));
      if (tensor.ok()) {
        EXPECT_EQ(tensor->data.size(), 4u);
      }
    }
  }
}

TEST(Npy, HeaderRoundTrips) {
  for (const DType dtype : {DType::f32, DType::f16, DType::e4m3, DType::int8, DType::sim8}) {
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{1, 2, 3, 4}}) {
      HostTensor tensor{dtype, shape, {}};
      tensor.data.resize(*contiguous_bytes(shape, dtype), std::byte{7});
      const std::string header = npy_header(tensor);
      EXPECT_EQ(header.size() % 64, 0u);
      const std::string file = header + std::string(tensor.data.size(), '\x07');
      const HostTensor back = read(file, DType::e4m3);
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(back.data, tensor.data);
      // Both sim8 and e4m3 are written as |u1; the reader returns e4m3 unless the caller names the
      // type.
      EXPECT_EQ(back.dtype, dtype == DType::sim8 ? DType::e4m3 : dtype);
    }
  }
}

}  // namespace
}  // namespace octavo::cli
