// SPDX-License-Identifier: Apache-2.0
// Calibration: ranges over several tensors, saving and loading, and hostile files.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "numeric/quantize_cases.h"

namespace octavo::testing {
namespace {

class CalibrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("octavo_calibration_") + test->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& file = "c.json") const { return (folder_ / file).string(); }

  std::string written(const std::string& text) const {
    std::ofstream(path(), std::ios::binary) << text;
    return path();
  }

  std::size_t files() const {
    const std::filesystem::directory_iterator begin(folder_);
    return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
  }

  std::filesystem::path folder_;
};

TEST_F(CalibrationTest, WidensOverTensors) {
  for (const Granularity granularity : kAllGranularities) {
    Values a({1, 2, 5, 4}, 1), b({1, 2, 5, 4}, 2);
    QuantizeOptions options;
    options.granularity = granularity;
    options.block_rows = 2;
    Calibration calibration;
    ASSERT_TRUE(calibration.observe("k", a.tensor(), DType::int8, options).ok());
    ASSERT_TRUE(calibration.observe("k", b.tensor(), DType::int8, options).ok());
    const std::vector<float> of_a = naive_scales(a, DType::int8, options);
    const std::vector<float> of_b = naive_scales(b, DType::int8, options);
    std::vector<float> expected(of_a.size());
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = std::max(of_a[i], of_b[i]);
    EXPECT_EQ(calibration.scales("k").value(), expected) << name(granularity);
    EXPECT_EQ(calibration.entries()[0].tensors, 2);
  }
}

TEST_F(CalibrationTest, LengthsMayDifferIfScalesDoNotDependOnThem) {
  Values small({1, 2, 3, 4}), large({1, 2, 300, 4});
  Calibration calibration;
  ASSERT_TRUE(calibration.observe("k", small.tensor(), DType::e4m3, {}).ok());
  EXPECT_TRUE(calibration.observe("k", large.tensor(), DType::e4m3, {}).ok());
}

TEST_F(CalibrationTest, ObservesSmoothedAndRotatedValues) {
  Values x({1, 1, 8, 8});
  for (float& value : x.data) value += 30.0f;
  QuantizeOptions options;
  options.smooth = options.hadamard = true;
  Calibration calibration;
  ASSERT_TRUE(calibration.observe("k", x.tensor(), DType::e4m3, options).ok());
  EXPECT_EQ(calibration.scales("k").value(), quantized(x, DType::e4m3, options).scales);
}

TEST_F(CalibrationTest, BadObservationsChangeNothing) {
  Values x({1, 2, 5, 4}), other({1, 3, 5, 4});
  Calibration calibration;
  ASSERT_TRUE(calibration.observe("k", x.tensor(), DType::e4m3, {}).ok());
  const auto refused = [&](std::string_view entry, const ConstTensor& tensor, DType format,
                           const QuantizeOptions& options) {
    const Status status = calibration.observe(entry, tensor, format, options);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(calibration.entries().size(), 1u);
    EXPECT_EQ(calibration.entries()[0].tensors, 1);
    return status.message();
  };
  EXPECT_EQ(refused("k", other.tensor(), DType::e4m3, {}),
            "number of scales of 'k' is 3; supported: 2, as of the tensors observed before.");
  EXPECT_EQ(refused("k", x.tensor(), DType::int8, {}),
            "format of 'k' is int8; supported: e4m3, as of the tensors observed before.");
  QuantizeOptions rows;
  rows.granularity = Granularity::row;
  EXPECT_EQ(refused("k", x.tensor(), DType::e4m3, rows),
            "granularity of 'k' is row; supported: head, as of the tensors observed before.");
  EXPECT_EQ(refused("v", x.tensor(), DType::f16, {}),
            "format is f16; supported: e4m3, e5m2, int8, sim8.");
  EXPECT_EQ(refused("", x.tensor(), DType::e4m3, {}),
            "name is empty; supported: a name for the tensor.");
  QuantizeOptions searched;
  searched.rule = ScaleRule::least_squares;
  refused("v", x.tensor(), DType::e4m3, searched);
  ConstTensor null = x.tensor();
  null.data = nullptr;
  refused("v", null, DType::e4m3, {});
  // A view that repeats one row without end needs more scales than fit.
  constexpr std::int64_t kMany = 2147483647;
  rows.smooth = true;
  refused("v", {x.data.data(), DType::f32, {kMany, kMany, kMany, 4}, {0, 0, 0, 1}}, DType::e4m3,
          rows);
  EXPECT_EQ(calibration.scales("nobody").status().message(), "name is 'nobody'; supported: k.");
}

TEST_F(CalibrationTest, SavesAndLoads) {
  Values x({2, 2, 5, 4}), zero({1, 1, 2, 2});
  zero.data.assign(4, 0.0f);
  Calibration calibration;
  QuantizeOptions options;
  options.granularity = Granularity::block;
  options.block_rows = 2;
  ASSERT_TRUE(calibration.observe("layer.0 \"k\" \xC3\xA9", x.tensor(), DType::e5m2, options).ok());
  options.granularity = Granularity::channel;
  options.block_rows = -5;  // ignored without blocks
  ASSERT_TRUE(calibration.observe("v", x.tensor(), DType::sim8, options).ok());
  ASSERT_TRUE(calibration.observe("zero", zero.tensor(), DType::int8, {}).ok());
  for (int save = 0; save < 2; ++save)  // also over the existing file
    ASSERT_TRUE(calibration.save(path()).ok());
  EXPECT_EQ(files(), 1u);

  const Result<Calibration> loaded = Calibration::load(path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_EQ(loaded->entries().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const Calibration::Entry &got = loaded->entries()[i], &was = calibration.entries()[i];
    EXPECT_EQ(got.name, was.name);
    EXPECT_EQ(got.format, was.format);
    EXPECT_EQ(got.granularity, was.granularity);
    EXPECT_EQ(got.block_rows, was.block_rows);
    EXPECT_EQ(got.shape, was.shape);
    EXPECT_EQ(got.tensors, was.tensors);
    EXPECT_EQ(got.amax, was.amax);
  }
  EXPECT_EQ(loaded->scales("zero").value(), std::vector<float>(1, 1.0f));
}

TEST_F(CalibrationTest, FailedSaveLeavesTheOldFile) {
  Values x({1, 1, 2, 2});
  Calibration calibration;
  ASSERT_TRUE(calibration.observe("bad \xFF name", x.tensor(), DType::int8, {}).ok());
  written("precious");
  EXPECT_EQ(calibration.save(path()).message(),
            "name is text that is not UTF-8; supported: names in UTF-8.");
  std::ifstream file(path());
  std::string text;
  file >> text;
  EXPECT_EQ(text, "precious");
  EXPECT_EQ(Calibration().save(path("no/such/folder.json")).code(), ErrorCode::io_error);
  std::filesystem::create_directories(path("taken/inside"));
  EXPECT_EQ(Calibration().save(path("taken")).code(), ErrorCode::io_error);
  EXPECT_EQ(files(), 2u);
}

TEST_F(CalibrationTest, FilesThatCannotBeRead) {
  EXPECT_EQ(Calibration::load(path("missing.json")).status().code(), ErrorCode::io_error);
  EXPECT_EQ(Calibration::load(folder_.string()).status().code(), ErrorCode::io_error);
}

std::string file_with(const std::string& key, const std::string& value) {
  std::string fields;
  for (const auto& [name, good] : {std::pair<std::string, std::string>{"name", "\"k\""},
                                   {"format", "\"e4m3\""},
                                   {"granularity", "\"head\""},
                                   {"block_rows", "64"},
                                   {"shape", "[1,2,5,4]"},
                                   {"tensors", "1"},
                                   {"amax", "[1.5,2]"}}) {
    if (name == key && value.empty()) continue;
    if (!fields.empty()) fields.append(",");
    fields.append("\"").append(name).append("\":").append(name == key ? value : good);
  }
  return R"({"octavo_calibration":1,"entries":[{)" + fields + "}]}";
}

TEST_F(CalibrationTest, HostileFields) {
  ASSERT_TRUE(Calibration::load(written(file_with("", ""))).ok());
  const auto refused = [&](const std::string& text) {
    const Result<Calibration> result = Calibration::load(written(text));
    EXPECT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), ErrorCode::invalid_argument) << text;
    const std::string& message = result.status().message();
    const std::string prefix = "Calibration file '" + path() + "': ";
    EXPECT_EQ(message.substr(0, prefix.size()), prefix) << text;
    EXPECT_LT(message.size(), prefix.size() + 300) << text;
    return message.substr(std::min(message.size(), prefix.size()));
  };
  EXPECT_EQ(refused(file_with("tensors", "-3")),
            "entries[0].tensors is -3; supported: whole numbers from 1 up.");
  EXPECT_EQ(refused(file_with("amax", "[1]")),
            "entries[0].amax is array of 1; supported: an array of 2, the scales of its shape by "
            "head.");
  EXPECT_EQ(refused(file_with("amax", "[1,-1]")),
            "entries[0].amax is -1; supported: finite numbers from 0 up.");
  EXPECT_EQ(refused(file_with("format", "\"f16\"")),
            "entries[0].format is f16; supported: e4m3, e5m2, int8, sim8.");
  for (const char* key :
       {"name", "format", "granularity", "block_rows", "shape", "tensors", "amax"}) {
    EXPECT_EQ(refused(file_with(key, "")),
              std::string("entries[0].") + key + " is missing; supported: a value.");
    for (const char* value : {"null", "true", "{}", "[]", "[[[[[[1]]]]]]", "-1", "1.5", "1e400",
                              "99999999999999999999", "18446744073709551615", "\"\"", "\"foo\""})
      if (!(std::string(key) == "name" && std::string(value) == "\"foo\""))
        refused(file_with(key, value));
  }
  refused(file_with("shape", "[1,2,5]"));
  refused(file_with("shape", "[1,-2,5,4]"));
  refused(file_with("shape", "[9223372036854775807,9223372036854775807,1,1]"));
  refused(file_with("amax", "[1,1e39]"));
  refused(file_with("amax", "[1,\"2\"]"));
  refused(file_with("amax", "[1,NaN]"));
}

TEST_F(CalibrationTest, HostileFiles) {
  const std::string good = file_with("", "");
  for (std::size_t length = 0; length < good.size(); ++length)  // truncated anywhere
    EXPECT_FALSE(Calibration::load(written(good.substr(0, length))).ok()) << length;
  for (const std::string& text :
       {std::string("[]"), std::string("1"), std::string("\xFF\xFE\x00\x01", 4),
        std::string(2000000, '['), std::string(R"({"entries":[]})"),
        std::string(R"({"octavo_calibration":2,"entries":[]})"),
        std::string(R"({"octavo_calibration":"1","entries":[]})"),
        std::string(R"({"octavo_calibration":1})"),
        std::string(R"({"octavo_calibration":1,"entries":[7]})"),
        std::string(R"({"octavo_calibration":1,"entries":{}})")})
    EXPECT_FALSE(Calibration::load(written(text)).ok()) << text.substr(0, 60);
  const std::size_t begin = good.find("[{") + 1, end = good.rfind(']');
  std::string twice = good.substr(0, end);
  twice.append(",").append(good, begin, end - begin).append(good.substr(end));
  const Status status = Calibration::load(written(twice)).status();
  EXPECT_NE(status.message().find("entries[1].name is \"k\"; supported: each name once."),
            std::string::npos)
      << status.message();
}

TEST_F(CalibrationTest, SaveDoesNotFollowPlantedLinks) {
  // Links at every name that follows from the process and a counter.
  const std::string precious = path("precious");
  std::ofstream(precious) << "precious";
  for (int count = 0; count < 1000; ++count)
    std::filesystem::create_symlink(
        precious, path() + "." + std::to_string(::getpid()) + "-" + std::to_string(count) + ".tmp");
  ASSERT_TRUE(Calibration().save(path()).ok());
  ASSERT_TRUE(Calibration::load(path()).ok());
  EXPECT_FALSE(std::filesystem::is_symlink(path()));
  std::ifstream file(precious);
  std::string text;
  file >> text;
  EXPECT_EQ(text, "precious");
}

TEST_F(CalibrationTest, ManyEntriesTakeLinearTime) {
  constexpr int kEntries = 100000;
  std::string text = R"({"octavo_calibration":1,"entries":[)";
  for (int i = 0; i < kEntries; ++i) {
    const std::string one = file_with("name", "\"" + std::to_string(i) + "\"");
    const std::size_t begin = one.find("[{") + 1;
    text.append(i == 0 ? "" : ",").append(one, begin, one.rfind(']') - begin);
  }
  const std::clock_t start = std::clock();
  ASSERT_TRUE(Calibration::load(written(text + "]}")).ok());
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 8);
}

TEST_F(CalibrationTest, FifoIsRefused) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(Calibration::load(path()).status().code(), ErrorCode::io_error)
      << "waits for a writer?";
}

TEST_F(CalibrationTest, EndlessFileIsRefused) {
  if (!std::filesystem::exists("/dev/zero")) GTEST_SKIP() << "no /dev/zero here";
  const Status status = Calibration::load("/dev/zero").status();
  EXPECT_EQ(status.message(), "Calibration file '/dev/zero': is not a regular file.");
}

}  // namespace
}  // namespace octavo::testing
