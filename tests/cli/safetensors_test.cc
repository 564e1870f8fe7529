// SPDX-License-Identifier: Apache-2.0
// The .safetensors reader: types, names, and invalid headers.
#include "tensors/safetensors.h"

#include <ctime>

#include "cli/files.h"

namespace octavo::cli {
namespace {

using Shape = std::vector<std::int64_t>;

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}";
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets,
                std::string_view data) {
  return safetensors_bytes("{\"q\":" + entry(dtype, shape, offsets) + "}", data);
}

void expect_refused(std::string_view file, std::string_view word, std::string_view wanted = "") {
  const Result<HostTensor> tensor = parse_safetensors(bytes_of(file), wanted);
  ASSERT_FALSE(tensor.ok()) << "expected a sentence with: " << word;
  EXPECT_EQ(tensor.status().code(), ErrorCode::invalid_argument);
  EXPECT_NE(tensor.status().message().find(word), std::string::npos) << tensor.status().message();
  EXPECT_NE(tensor.status().message().find("; supported: "), std::string::npos)
      << tensor.status().message();
}

TEST(Safetensors, ReadsEveryType) {
  const std::vector<std::pair<const char*, DType>> types = {
      {"F32", DType::f32},      {"F16", DType::f16},      {"BF16", DType::bf16},
      {"F8_E4M3", DType::e4m3}, {"F8_E5M2", DType::e5m2}, {"I8", DType::int8},
      {"U8", DType::sim8}};
  for (const auto& [text, dtype] : types) {
    const std::size_t bytes = 2 * size_bytes(dtype);
    const std::string file =
        one(text, "[1,2,1,1]", "[0," + std::to_string(bytes) + "]", std::string(bytes, 'z'));
    const Result<HostTensor> tensor = parse_safetensors(bytes_of(file), "q");
    ASSERT_TRUE(tensor.ok()) << tensor.status().message();
    EXPECT_EQ(tensor->dtype, dtype);
    EXPECT_EQ(tensor->shape, (Shape{1, 2, 1, 1}));
    EXPECT_EQ(tensor->data, std::vector<std::byte>(bytes, std::byte{'z'}));
  }
  const std::string codes = one("U8", "[2]", "[0,2]", "zz");
  EXPECT_EQ(parse_safetensors(bytes_of(codes), "", DType::e5m2)->dtype, DType::e5m2);
  const std::string booleans = one("BOOL", "[2]", "[0,2]", "zz");
  EXPECT_EQ(parse_safetensors(bytes_of(booleans), "", DType::boolean)->dtype, DType::boolean);
  EXPECT_EQ(parse_safetensors(bytes_of(codes), "", DType::boolean)->dtype, DType::boolean);
  EXPECT_FALSE(parse_safetensors(bytes_of(booleans), "").ok());
}

TEST(Safetensors, PicksByName) {
  const std::string file = safetensors_bytes(
      "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" + entry("I8", "[1]", "[0,1]") + ",\"b\":" +
          entry("I8", "[2]", "[1,3]") + ",\"other\":" + entry("I64", "[1]", "[0,3]") + "}",
      "xyz");
  EXPECT_EQ(parse_safetensors(bytes_of(file), "a")->data, (std::vector<std::byte>{std::byte{'x'}}));
  EXPECT_EQ(parse_safetensors(bytes_of(file), "b")->data,
            (std::vector<std::byte>{std::byte{'y'}, std::byte{'z'}}));
  expect_refused(file, "'a', 'b', 'other'", "c");
  expect_refused(file, "not given");
  expect_refused(file, "'I64'", "other");
  expect_refused(file, "'__metadata__'", "__metadata__");
}

TEST(Safetensors, ErrorListsAtMostEightNames) {
  std::string header = "{";
  for (char c = 'a'; c <= 'z'; ++c) {
    header += (c == 'a' ? "\"" : ",\"") + std::string(1, c) + "\":" + entry("I8", "[0]", "[0,0]");
  }
  expect_refused(safetensors_bytes(header + "}", ""), "'h' and 18 more", "none");
}

TEST(Safetensors, RefusesOffsets) {
  const std::string data(8, 'x');
  EXPECT_TRUE(parse_safetensors(bytes_of(one("F32", "[2]", "[0,8]", data)), "").ok());
  expect_refused(one("F32", "[2]", "[0,9]", data), "[0, 9]");
  // The length matches the shape, but the range is outside the file: nothing may be allocated for
  // these.
  expect_refused(one("F32", "[2]", "[4,12]", data), "[4, 12]");
  expect_refused(one("F32", "[1152921504606846976]", "[0,4611686018427387904]", data),
                 "[0, 4611686018427387904]");
  expect_refused(one("F32", "[1]", "[8,4]", data), "[8, 4]");
  expect_refused(one("F32", "[3]", "[0,8]", data), "12 bytes");
  expect_refused(one("F32", "[1]", "[0,8]", data), "4 bytes");
  expect_refused(one("F32", "[2]", "[0,18446744073709551615]", data), "malformed");
  expect_refused(one("F32", "[2]", "[-8,0]", data), "malformed");
  expect_refused(one("F32", "[2]", "[0]", data), "malformed");
  expect_refused(one("F32", "[2]", "[0,8,8]", data), "malformed");
  expect_refused(one("F32", "[2]", "\"0,8\"", data), "malformed");
  expect_refused(one("F32", "[2]", "[0,8.0]", data), "malformed");
}

TEST(Safetensors, RefusesShapes) {
  const std::string data(8, 'x');
  expect_refused(one("F32", "[-2]", "[0,8]", data), "shape");
  expect_refused(one("F32", "[1e3]", "[0,8]", data), "shape");
  expect_refused(one("F32", "2", "[0,8]", data), "shape");
  expect_refused(one("F32", "[4294967296,4294967296]", "[0,8]", data), "2^63");
  expect_refused(one("F32", "[0,4294967296,4294967296]", "[0,0]", data), "2^63");
  expect_refused(one("F32", "[18446744073709551615]", "[0,8]", data), "shape");
}

TEST(Safetensors, RefusesHeaders) {
  expect_refused("", "0 bytes");
  expect_refused("1234567", "7 bytes");
  expect_refused(little_endian(1, 8), "length is 1 ");
  expect_refused(std::string(8, '\xff') + "{}", "18446744073709551615");
  for (const char* header : {"", "[]", "1", "{", "{\"q\":", "null", "\xff\xfe", "{} {}"}) {
    expect_refused(safetensors_bytes(header, ""), "the header is");
  }
  expect_refused(safetensors_bytes("{}", ""), "none");
  expect_refused(safetensors_bytes("{\"q\":1}", ""), "not an object");
  expect_refused(safetensors_bytes("{\"q\":{}}", ""), "dtype");
  expect_refused(safetensors_bytes("{\"q\":{\"dtype\":3}}", ""), "dtype");
  expect_refused(safetensors_bytes("{\"q\":{\"dtype\":\"F32\"}}", ""), "shape");
  const std::string q = "\"q\":" + entry("I8", "[0]", "[0,0]");
  expect_refused(safetensors_bytes("{" + q + "," + q + "}", ""), "twice");
}

TEST(Safetensors, DeepNestingCostsNoStack) {
  const std::string brackets(1 << 17, '[');
  expect_refused(safetensors_bytes("{\"q\":" + brackets, ""), "header");
  const std::string closed = brackets + std::string(brackets.size(), ']');
  expect_refused(safetensors_bytes("{\"q\":" + closed + "}", ""), "header");
}

TEST(Safetensors, ManyNamesTakeLinearTime) {
  constexpr int kNames = 40000;
  std::string header;
  for (int i = 0; i < kNames; ++i)
    header += (i == 0 ? "{\"n" : ",\"n") + std::to_string(i) + "\":" + entry("F32", "[1]", "[0,4]");
  const std::string file = safetensors_bytes(header + "}", "abcd");
  const std::clock_t start = std::clock();
  EXPECT_TRUE(parse_safetensors(bytes_of(file), "n39999").ok());
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 8);
}

TEST(Safetensors, EveryPrefixIsRefused) {
  const std::string whole = one("F32", "[2]", "[0,8]", "abcdefgh");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_safetensors(bytes_of(std::string_view(whole).substr(0, size)), "").ok());
  }
}

TEST(Safetensors, HeaderRoundTrips) {
  for (const DType dtype : kAllDTypes) {
    const HostTensor tensor{dtype, {1, 2, 1, 3}, std::vector<std::byte>(6 * size_bytes(dtype))};
    const std::string header = safetensors_header(tensor, "o \"ut\xff");
    EXPECT_EQ(header.size() % 8, 0u);
    const std::string file = header + std::string(tensor.data.size(), '\0');
    const Result<HostTensor> back = parse_safetensors(bytes_of(file), "");
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->dtype, dtype);
    EXPECT_EQ(back->shape, tensor.shape);
    EXPECT_EQ(back->data, tensor.data);
  }
}

}  // namespace
}  // namespace octavo::cli
