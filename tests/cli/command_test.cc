// SPDX-License-Identifier: Apache-2.0
// Runs the command as a process: exit codes, error sentences, files, JSON.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>

#include "cli/process.h"
#include "octavo/evidence.hpp"
#include "tensors/npy.h"
#include "tensors/tensor_file.h"

namespace octavo::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kB = 1, kH = 4, kHkv = 2, kS = 33, kD = 16;

std::string random_npy(std::int64_t h, std::int64_t s, std::uint64_t stream,
                       DType dtype = DType::f32) {
  HostTensor tensor = *make_tensor("x", dtype, {kB, h, s, kD});
  EXPECT_TRUE(random_normal(*bhsd_view("x", tensor), 7, stream).ok());
  return npy_header(tensor) +
         std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
}

// A directory with Q, K and V of a GQA problem.
class Command : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(q_, random_npy(kH, kS, 0));
    write_file(k_, random_npy(kHkv, kS, 1));
    write_file(v_, random_npy(kHkv, kS, 2));
  }

  std::vector<std::string> run_arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"run", "--device", "cpu", "--q", q_, "--k", k_, "--v", v_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Directory directory_;
  const std::string q_ = directory_ / "Q.npy", k_ = directory_ / "K.npy", v_ = directory_ / "V.npy",
                    o_ = directory_ / "O.npy";
};

void expect_failed(const Finished& finished, int code, std::string_view word) {
  EXPECT_EQ(finished.code, code) << finished.err;
  EXPECT_EQ(finished.out, "");
  EXPECT_TRUE(finished.err.starts_with("octavo: ")) << finished.err;
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  EXPECT_NE(finished.err.find(word), std::string::npos) << finished.err;
}

void expect_envelope(const json& object, std::string_view kind) {
  EXPECT_EQ(object.at("schema"), kSchemaVersion);
  EXPECT_EQ(object.at("kind"), kind);
  EXPECT_EQ(object.at("version"), version());
}

TEST_F(Command, HelpAndVersion) {
  const Finished version_line = octavo_command({"--version"});
  EXPECT_EQ(version_line.code, 0);
  EXPECT_EQ(version_line.out, "octavo " + std::string(version()) + "\n");
  const Finished help = octavo_command({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"run", "check", "bench", "gate", "quantize", "explain", "devices"}) {
    EXPECT_NE(help.out.find(name), std::string::npos);
    const Finished own = octavo_command({name, "--help"});
    EXPECT_EQ(own.code, 0);
    EXPECT_NE(own.out.find("Example: octavo " + std::string(name)), std::string::npos);
  }
}

TEST_F(Command, BadUsageExitsWithTwo) {
  expect_failed(octavo_command({}), 2, "subcommand");
  expect_failed(octavo_command({"frobnicate"}), 2, "'frobnicate'");
  expect_failed(octavo_command({"--frobnicate"}), 2, "");
  expect_failed(octavo_command({"run", "--frobnicate"}), 2, "--frobnicate");
  expect_failed(octavo_command({"run"}), 2, "--q, --k and --v");
  expect_failed(octavo_command({"run", "--q", q_}), 2, "1 of --q, --k and --v");
  expect_failed(octavo_command(run_arguments({"--preset", "small"})), 2, "with a size");
  expect_failed(octavo_command(run_arguments({"--causal", "sideways"})), 2, "sideways");
  expect_failed(octavo_command(run_arguments({"--window", "3"})), 2, "--window is '3'");
  expect_failed(octavo_command(run_arguments({"--window", "3,-2"})), 2, "'3,-2'");
  expect_failed(octavo_command(run_arguments({"--precision", "fp7"})), 2, "fp7");
  expect_failed(octavo_command(run_arguments({"--scale", "abc"})), 2, "--scale");
  expect_failed(octavo_command(run_arguments({"--scale", "nan"})), 2, "scale");
  expect_failed(octavo_command(run_arguments({"--device", "cpu"})), 2, "--device");
  expect_failed(octavo_command({"run", "--preset", "small", "--device", "toaster"}), 2, "toaster");
  expect_failed(octavo_command(run_arguments({"--threads", "-3"})), 2, "threads");
  expect_failed(octavo_command({"run", "--preset", "tiny"}), 2, "mission");
  expect_failed(octavo_command({"run", "--shape", "1,2,3"}), 2, "'1,2,3'");
  expect_failed(octavo_command({"run", "--shape", "1,-2,3,4"}), 2, "'1,-2,3,4'");
  expect_failed(octavo_command({"run", "--shape", "1,1,1000000000000,1000000"}), 2, "--shape");
  expect_failed(octavo_command({"run", "--shape", "1,1,8,8", "--dtype", "e4m3"}), 2, "e4m3");
  expect_failed(octavo_command({"check", "--suite", "nonsense"}), 2, "nonsense");
  expect_failed(octavo_command({"check", "--precision", "fp7"}), 2, "fp7");
  expect_failed(octavo_command({"bench", "--iters", "0"}), 2, "iters");
  expect_failed(octavo_command({"bench", "--preset", "small", "--config", "x"}), 2, "config");
  expect_failed(octavo_command({"explain"}), 2, "--shape");
  expect_failed(octavo_command({"quantize"}), 2, "--in");
}

TEST_F(Command, BadInputExitsWithTwoAndWritesNothing) {
  write_file(o_, "precious");
  const std::string bad = directory_ / "bad.npy";
  struct Case {
    std::string bytes, word;
  };
  const std::string good = random_npy(kHkv, kS, 1);
  const std::vector<Case> cases = {
      {good.substr(0, good.size() - 1), "bytes long"},
      {good + "x", "bytes long"},
      {good.substr(0, 20), "header"},
      {"", "0 bytes"},
      {npy_bytes(npy_dict("<f8", "(1, 2, 1, 16)"), std::string(256, 'x')), "'<f8'"},
      {npy_bytes(npy_dict("<f4", "(2, 33, 16)"), std::string(4224, 'x')), "rank 3"},
      {npy_bytes(npy_dict("<f4", "(1, 3, 1, 16)"), std::string(192, '\0')), "3"},
      {npy_bytes(npy_dict("<f4", "(1, 2, 1, 8)"), std::string(64, '\0')), "8"},
      {npy_bytes(npy_dict("|i1", "(1, 2, 33, 16)"), std::string(1056, '\0')), "scale"},
  };
  for (const Case& c : cases) {
    write_file(bad, c.bytes);
    auto arguments = run_arguments({"--out", o_});
    arguments[6] = bad;
    expect_failed(octavo_command(arguments), 2, c.word);
    EXPECT_EQ(read_file(o_), "precious");
  }
  auto missing = run_arguments({"--out", o_});
  missing[6] = directory_ / "none.npy";
  expect_failed(octavo_command(missing), 2, "--k ");
  expect_failed(octavo_command(run_arguments({"--out", o_, "--out-dtype", "int8"})), 2, "");
  expect_failed(octavo_command(run_arguments({"--out", o_, "--lse", o_})), 2, "--lse");
  expect_failed(octavo_command(run_arguments({"--out", directory_ / "O.bin"})), 2, "FILE.npy");
  expect_failed(octavo_command(run_arguments({"--q-scales", v_})), 2, "--q-scales");
  EXPECT_EQ(read_file(o_), "precious");
  EXPECT_EQ(directory_.files(), 5u) << "a temporary file was left behind";
}

TEST_F(Command, UnwritableOutputExitsWithOne) {
  const std::string nowhere = directory_ / "none/O.npy";
  expect_failed(octavo_command(run_arguments({"--out", nowhere})), 1, "cannot be written");
  write_file(o_, "precious");
  expect_failed(octavo_command(run_arguments({"--out", o_, "--lse", nowhere})), 1, "--lse");
  expect_failed(octavo_command(run_arguments({"--out", o_, "--json", nowhere})), 1, "--json");
  EXPECT_EQ(read_file(o_), "precious");
}

TEST_F(Command, RunAgreesWithTheReference) {
  const std::string lse_file = directory_ / "L.npy", json_file = directory_ / "r.json";
  const Finished finished =
      octavo_command(run_arguments({"--out", o_, "--lse", lse_file, "--causal", "bottom_right",
                                    "--window", "9,-1", "--scale", "0.3", "--json", json_file}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_NE(finished.out.find("kernel "), std::string::npos);

  HostTensor q = *load_tensor("q", q_), k = *load_tensor("k", k_), v = *load_tensor("v", v_);
  const Result<HostTensor> out = load_tensor("o", o_), lse = load_tensor("l", lse_file);
  ASSERT_TRUE(out.ok()) << out.status().message();
  ASSERT_TRUE(lse.ok()) << lse.status().message();
  EXPECT_EQ(out->shape, q.shape);
  EXPECT_EQ(lse->shape, (std::vector<std::int64_t>{kB, kH, kS}));
  Arguments arguments;
  arguments.q = *bhsd_view("q", q);
  arguments.k = *bhsd_view("k", k);
  arguments.v = *bhsd_view("v", v);
  HostTensor copy = *out;
  arguments.out = *bhsd_view("o", copy);
  HostTensor lse_copy = *lse;
  lse_copy.shape.push_back(1);
  arguments.lse = *bhsd_view("l", lse_copy);
  arguments.scale = 0.3f;
  Options options;
  options.causal = Causal::bottom_right;
  options.window_left = 9;
  std::vector<double> truth(kB * kH * kS * kD), lse_truth(kB * kH * kS);
  ASSERT_TRUE(reference(arguments, options, truth.data(), lse_truth.data()).ok());
  EXPECT_LT(compare(arguments.out, truth.data()).max_abs, 1e-5);
  EXPECT_LT(compare(arguments.lse, lse_truth.data()).max_abs, 1e-5);

  const json object = json::parse(read_file(json_file));
  expect_envelope(object, "run");
  EXPECT_EQ(object.at("seed"), nullptr);
  EXPECT_EQ(object.at("out").at("shape"), json(q.shape));
  EXPECT_EQ(object.at("out").at("not_finite"), 0);
  EXPECT_FALSE(object.at("kernel").contains("schema"));
  EXPECT_TRUE(object.at("kernel").contains("config"));
  EXPECT_EQ(object.at("files").at("lse"), lse_file);
}

std::string npy_of(DType dtype, const std::vector<std::int64_t>& shape,
                   const std::vector<float>& values) {
  HostTensor tensor = *make_tensor("x", DType::f32, shape);
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  if (dtype == DType::f32)
    return npy_header(tensor) +
           std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  std::string text = npy_header(HostTensor{DType::int8, shape, {}});
  text.replace(text.find("|i1"), 3, "|b1");
  for (const float x : values) text += static_cast<char>(x != 0);
  return text;
}

// Every modifier from its flag, as the reference computes it.
TEST_F(Command, RunTakesPaddingAndScoreModifiers) {
  const std::string bias = directory_ / "bias.npy", mask = directory_ / "mask.npy",
                    slopes = directory_ / "slopes.npy", sinks = directory_ / "sinks.npy";
  std::vector<float> bias_values(kH * kS), mask_values(kS * kS), slope_values, sink_values;
  for (std::size_t i = 0; i < bias_values.size(); ++i)
    bias_values[i] = 0.1f * static_cast<float>(i % 7);
  for (std::size_t i = 0; i < mask_values.size(); ++i) mask_values[i] = i % 5 == 0 ? 0.0f : 1.0f;
  for (int h = 0; h < kH; ++h) {
    slope_values.push_back(0.5f / static_cast<float>(1 << h));
    sink_values.push_back(static_cast<float>(h) - 1);
  }
  write_file(bias, npy_of(DType::f32, {1, kH, 1, kS}, bias_values));
  write_file(mask, npy_of(DType::boolean, {1, 1, kS, kS}, mask_values));
  write_file(slopes, npy_of(DType::f32, {kH}, slope_values));
  write_file(sinks, npy_of(DType::f32, {kH}, sink_values));
  const std::vector<std::string> flags = {
      "--softcap",    "1.5", "--bias",      bias, "--mask",       mask, "--alibi-slopes", slopes,
      "--sinks",      sinks, "--seqlens-q", "20", "--seqlens-kv", "25", "--leftpad-q",    "3",
      "--leftpad-kv", "4",   "--out",       o_,   "--causal"};
  const Finished finished = octavo_command(run_arguments(flags));
  ASSERT_EQ(finished.code, 0) << finished.err;
  // The line is wrapped.
  const std::string joined = std::regex_replace(finished.out, std::regex("\\s+"), " ");
  EXPECT_NE(joined.find("padded softcap=1.5 bias=f32 alibi mask sinks"), std::string::npos)
      << finished.out;

  HostTensor q = *load_tensor("q", q_), k = *load_tensor("k", k_), v = *load_tensor("v", v_);
  HostTensor out = *load_tensor("out", o_);
  std::vector<std::uint8_t> mask_bytes;
  for (const float x : mask_values) mask_bytes.push_back(x != 0 ? 1 : 0);
  const std::int32_t seqlens_q = 20, seqlens_kv = 25, leftpad_q = 3, leftpad_kv = 4;
  Arguments a;
  a.q = *bhsd_view("q", q), a.k = *bhsd_view("k", k), a.v = *bhsd_view("v", v);
  a.out = *bhsd_view("out", out);
  a.bias = ConstTensor::bhsd(bias_values.data(), DType::f32, 1, kH, 1, kS);
  a.mask = ConstTensor::bhsd(mask_bytes.data(), DType::boolean, 1, 1, kS, kS);
  a.alibi_slopes = slope_values.data(), a.sinks = sink_values.data();
  a.seqlens_q = &seqlens_q, a.seqlens_kv = &seqlens_kv;
  a.leftpad_q = &leftpad_q, a.leftpad_kv = &leftpad_kv;
  Options options;
  options.causal = Causal::top_left;
  options.softcap = 1.5f;
  std::vector<double> expected(kH * kS * kD);
  ASSERT_EQ(reference(a, options, expected.data()).message(), "");
  EXPECT_LT(compare(a.out, expected.data()).max_abs, 1e-5);
}

// Hidden blocks, whose size follows from their number.
TEST_F(Command, RunTakesABlockMask) {
  const std::string blocks = directory_ / "blocks.npy";
  write_file(blocks, npy_of(DType::boolean, {1, kH, 1, 1}, {1, 0, 1, 0}));
  const Finished finished = octavo_command(run_arguments({"--block-mask", blocks, "--out", o_}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  const HostTensor out = *load_tensor("out", o_);
  const auto* values = reinterpret_cast<const float*>(out.data.data());
  for (int h = 0; h < kH; ++h)
    EXPECT_EQ(std::all_of(values + h * kS * kD, values + (h + 1) * kS * kD,
                          [](float x) { return x == 0; }),
              h % 2 == 1);
  for (const auto& [count, size] : {std::pair<std::int64_t, int>{4, 64}, {2, 128}}) {
    std::vector<float> seen(static_cast<std::size_t>(count * count), 1.0f);
    seen[1] = 0;
    write_file(blocks, npy_of(DType::boolean, {1, 1, count, count}, seen));
    const Finished sized =
        octavo_command({"run", "--shape", "1,2,200,16", "--block-mask", blocks, "--device", "cpu"});
    EXPECT_NE(sized.out.find("block_mask=" + std::to_string(size)), std::string::npos)
        << sized.out << sized.err;
  }
}

TEST_F(Command, BadModifiersExitWithTwo) {
  const std::string floats = directory_ / "floats.npy", mask = directory_ / "mask.npy";
  write_file(floats, npy_of(DType::f32, {3}, {1, 2, 3}));
  write_file(mask, npy_of(DType::boolean, {1, 1, 1, 2}, {1, 0}));
  const auto expect = [&](const std::vector<std::string>& flags, std::string_view word) {
    expect_failed(octavo_command(run_arguments(flags)), 2, word);
  };
  expect({"--softcap", "-2"}, "softcap is -2");
  expect({"--sinks", floats}, "--sinks is of shape (3,); supported: (4,)");
  expect({"--alibi-slopes", floats}, "--alibi-slopes is of shape (3,); supported: (4,) or (1, 4)");
  expect({"--bias", floats}, "--bias");
  expect({"--mask", mask}, "mask.shape is (1, 1, 1, 2)");
  expect({"--bias", mask}, "'|b1'");
  expect({"--mask", q_}, "mask.dtype is f32; supported: bool");
  expect({"--block-mask", q_}, "--block-mask is of type f32; supported: bool");
  expect(
      {"--block-mask", mask},
      "--block-mask is of shape (1, 1, 1, 2); supported: (B,H,1,1) in blocks of 64, (B,H,1,1) in "
      "blocks of 128");
  expect({"--seqlens-q", "1,2"}, "--seqlens-q is '1,2'; supported: 1 lengths");
  expect({"--seqlens-q", "-1"}, "--seqlens-q is -1");
  expect({"--seqlens-kv", "34"}, "seqlens_kv[0] is 34; supported: 0 to 33");
  expect({"--leftpad-kv", "34"}, "leftpad_kv[0] is 34");
}

TEST_F(Command, RunOnRandomInputsIsRepeatable) {
  const std::vector<std::string> arguments = {"run",
                                              "--device",
                                              "cpu",
                                              "--shape",
                                              "1,4,40,32",
                                              "--kv-heads",
                                              "1",
                                              "--dtype",
                                              "bf16",
                                              "--kv-length",
                                              "70",
                                              "--precision",
                                              "fp8",
                                              "--out",
                                              o_,
                                              "--causal",
                                              "--granularity-qk",
                                              "block",
                                              "--block-rows",
                                              "16",
                                              "--json",
                                              "-"};
  const Finished first = octavo_command(arguments);
  ASSERT_EQ(first.code, 0) << first.err;
  const json object = json::parse(first.out);
  expect_envelope(object, "run");
  EXPECT_EQ(object.at("seed"), 42);
  EXPECT_EQ(object.at("out").at("dtype"), "bf16");
  EXPECT_NE(object.at("problem").get<std::string>().find("top_left"), std::string::npos);
  const std::string once = read_file(o_);
  ASSERT_EQ(octavo_command(arguments).code, 0);
  EXPECT_EQ(read_file(o_), once);
  EXPECT_NE(once.find("'<f4'"), std::string::npos) << ".npy holds bf16 as f32";
  auto other = arguments;
  other.insert(other.end(), {"--seed", "43"});
  ASSERT_EQ(octavo_command(other).code, 0);
  EXPECT_NE(read_file(o_), once);
}

TEST_F(Command, RunTakesEmptyInputs) {
  EXPECT_EQ(octavo_command({"run", "--device", "cpu", "--shape", "0,4,8,8", "--out", o_}).code, 0);
  EXPECT_EQ(load_tensor("o", o_)->shape, (std::vector<std::int64_t>{0, 4, 8, 8}));
}

TEST_F(Command, QuantizedFilesRun) {
  const auto quantized = [&](const std::string& letter, const std::string& input) {
    const Finished finished = octavo_command(
        {"quantize", "--in", input, "--format", "e4m3", "--granularity", "row", "--out",
         directory_ / (letter + "c.npy"), "--scales-out", directory_ / (letter + "s.npy")});
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_NE(finished.out.find("SQNR"), std::string::npos);
  };
  quantized("q", q_);
  quantized("k", k_);
  quantized("v", v_);
  std::vector<std::string> arguments = {"run",   "--device", "cpu",         "--dtype", "e4m3",
                                        "--out", o_,         "--out-dtype", "f32"};
  for (const std::string letter : {"q", "k", "v"}) {
    arguments.insert(arguments.end(),
                     {"--" + letter, directory_ / (letter + "c.npy"), "--" + letter + "-scales",
                      directory_ / (letter + "s.npy"), "--" + letter + "-granularity", "row"});
  }
  const Finished finished = octavo_command(arguments);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::string plain = directory_ / "P.npy";
  ASSERT_EQ(octavo_command(run_arguments({"--out", plain})).code, 0);
  const HostTensor a = *load_tensor("a", o_), b = *load_tensor("b", plain);
  ASSERT_EQ(a.data.size(), b.data.size());
  double worst = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    worst = std::max(worst, std::abs(double(reinterpret_cast<const float*>(a.data.data())[i]) -
                                     reinterpret_cast<const float*>(b.data.data())[i]));
  }
  EXPECT_GT(worst, 1e-4) << "nothing was quantized";
  EXPECT_LT(worst, 0.3);
  arguments.resize(arguments.size() - 1);
  arguments.back() = "--causal";
  expect_failed(octavo_command(arguments), 2, "for granularity head");
}

TEST_F(Command, QuantizeWithGivenScalesAndMean) {
  const std::string scales = directory_ / "s.npy", mean = directory_ / "m.npy",
                    codes = directory_ / "c.safetensors:key";
  write_file(scales, npy_bytes(npy_dict("<f4", "(1, 2)"), raw<float>({0.5f, 0.25f})));
  const Finished finished =
      octavo_command({"quantize", "--in", k_, "--format", "int8", "--scales-in", scales, "--smooth",
                      "--hadamard", "--mean-out", mean, "--out", codes, "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json object = json::parse(finished.out);
  expect_envelope(object, "quantize");
  EXPECT_EQ(object.at("scales_from"), "file");
  EXPECT_EQ(object.at("scales"), 2);
  EXPECT_EQ(object.at("stats").at("values"), kHkv * kS * kD);
  EXPECT_EQ(load_tensor("c", codes)->dtype, DType::int8);
  EXPECT_EQ(load_tensor("m", mean)->shape, (std::vector<std::int64_t>{1, 2, kD}));
  expect_failed(octavo_command({"quantize", "--in", k_, "--mean-out", mean}), 2, "--smooth");
  expect_failed(octavo_command({"quantize", "--in", q_, "--scales-in", scales}), 2, "(1, 4)");
  expect_failed(octavo_command({"quantize", "--in", k_, "--format", "f16"}), 2, "--format");
  expect_failed(
      octavo_command({"quantize", "--in", k_, "--granularity", "block", "--block-rows", "0"}), 2,
      "block");
  write_file(scales, npy_bytes(npy_dict("<f4", "(1, 2)"), raw<float>({0.5f, NAN})));
  expect_failed(octavo_command({"quantize", "--in", k_, "--scales-in", scales}), 2, "scale");
}

TEST_F(Command, CalibrationAddsTensorsAndGivesScales) {
  const std::string file = directory_ / "calibration.json";
  const Finished first = octavo_command({"quantize", "--calibrate", file, "--name", "k", "--in", k_,
                                         "--in", v_, "--format", "int8", "--json", "-"});
  ASSERT_EQ(first.code, 0) << first.err;
  expect_envelope(json::parse(first.out), "calibrate");
  EXPECT_EQ(json::parse(first.out).at("tensors"), 2);
  const Finished second = octavo_command(
      {"quantize", "--calibrate", file, "--name", "k", "--in", k_, "--format", "int8"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.out.find("3 observed"), std::string::npos) << second.out;

  const Finished served =
      octavo_command({"quantize", "--in", v_, "--calibration", file, "--name", "k", "--json", "-"});
  ASSERT_EQ(served.code, 0) << served.err;
  EXPECT_EQ(json::parse(served.out).at("format"), "int8");
  EXPECT_EQ(json::parse(served.out).at("scales_from"), "calibration");
  EXPECT_EQ(json::parse(served.out).at("stats").at("clipped_fraction"), 0);

  const auto serve = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"quantize", "--in", v_, "--calibration", file});
    return octavo_command(more);
  };
  expect_failed(serve({}), 2, "--name");
  expect_failed(serve({"--name", "q"}), 2, "'k'");
  expect_failed(serve({"--name", "k", "--format", "e4m3"}), 2, "as calibrated");
  const std::string before = read_file(file);
  expect_failed(octavo_command({"quantize", "--calibrate", file, "--name", "k", "--in", q_,
                                "--format", "int8"}),
                2, "Q.npy");
  EXPECT_EQ(read_file(file), before);
  write_file(file, "{\"hostile\": 1");
  expect_failed(serve({"--name", "k"}), 2, "calibration.json");
}

TEST_F(Command, CheckPasses) {
  const std::string file = directory_ / "check.json";
  const Finished finished = octavo_command({"check", "--device", "cpu", "--suite", "twelve",
                                            "--precision", "int8_mixed", "--json", file});
  EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
  EXPECT_EQ(finished.err, "") << "progress where there is no terminal";
  EXPECT_NE(finished.out.find("\npassed: "), std::string::npos) << finished.out;
  const json object = json::parse(read_file(file));
  expect_envelope(object, "check");
  EXPECT_EQ(object.at("passed"), true);
  EXPECT_EQ(object.at("suite"), "twelve");
  EXPECT_GE(object.at("cases").get<int>(), 12);
  for (const char* field :
       {"precision", "format", "cases", "failed", "worst_total_error", "worst_kernel_error",
        "worst_total_rmse", "worst_bound_ratio", "bound", "worst_case"}) {
    EXPECT_TRUE(object.at("rows").at(0).contains(field)) << field;
  }
}

// Like a limit on processes, which would not apply to root.
TEST_F(Command, ASystemThatStartsNoThreadIsServedByOne) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer must be the first library of a program";
#endif
  const std::vector<std::vector<std::string>> commands = {
      {"check", "--device", "cpu", "--suite", "twelve", "--precision", "native", "--cases", "6"},
      {"bench", "--device", "cpu", "--shape", "1,2,64,16", "--iters", "1", "--warmup", "0"},
  };
  for (std::vector<std::string> arguments : commands) {
    arguments.insert(arguments.begin(), {"LD_PRELOAD=" OCTAVO_NO_THREADS, OCTAVO_COMMAND});
    const Finished finished = run_program("env", arguments);
    EXPECT_EQ(finished.code, 0) << arguments[2] << ": " << finished.err;
    EXPECT_EQ(finished.err, "") << arguments[2];
  }
}

TEST_F(Command, BenchMeasures) {
  const Finished finished = octavo_command({"bench", "--device", "cpu", "--shape", "1,2,64,16",
                                            "--shape", "1,1,32,8", "--causal", "--dtype", "f32",
                                            "--iters", "3", "--warmup", "1", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json object = json::parse(finished.out);
  expect_envelope(object, "bench");
  EXPECT_EQ(object.at("attention").at("causal"), "top_left");
  ASSERT_EQ(object.at("rows").size(), 2u);
  const json& row = object.at("rows").at(0);
  EXPECT_EQ(row.at("name"), "1,2,64,16");
  EXPECT_GT(row.at("median_us").get<double>(), 0);
  EXPECT_GT(row.at("gflops").get<double>(), 0);
  EXPECT_GT(row.at("fma_peak_fraction").get<double>(), 0);
  EXPECT_GT(row.at("three_loop_ratio").get<double>(), 0);
  EXPECT_LT(row.at("max_error").get<double>(), 1e-4);
  EXPECT_EQ(row.at("samples_us").size(), 3u);

  const Finished quick =
      octavo_command({"bench", "--device", "cpu", "--shape", "1,1,32,8", "--iters", "1", "--warmup",
                      "0", "--skip-correctness", "--no-three-loop"});
  EXPECT_EQ(quick.code, 0) << quick.err;
  EXPECT_EQ(quick.err, "");
  EXPECT_NE(quick.out.find("median us"), std::string::npos);
}

TEST_F(Command, AccuracyListsErrorsAndUnmeasuredModes) {
  const std::vector<std::string> all = {
      "accuracy", "--device", "cpu", "--data",  "v_mean", "--precision", "fp8", "--precision",
      "int8",     "--keys",   "512", "--seeds", "1"};
  const Finished finished = octavo_command(all);
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("v_mean (1, 1, 128, 128), 512 keys"), std::string::npos);
  EXPECT_NE(finished.out.find("not measured"), std::string::npos);
  std::vector<std::string> with_json = all;
  with_json.insert(with_json.end(), {"--json", "-"});
  const json object = json::parse(octavo_command(with_json).out);
  expect_envelope(object, "accuracy");
  ASSERT_EQ(object.at("rows").size(), 2u);
  const json& row = object.at("rows").at(0);
  EXPECT_EQ(row.at("precision"), "fp8");
  EXPECT_GT(row.at("total").at("rmse").get<double>(), row.at("kernel_error").at("rmse"));
  EXPECT_TRUE(row.at("us").is_null());
  std::vector<std::string> with_plot = all;
  with_plot.insert(with_plot.end(), {"--plot", directory_ / "plot.svg"});
  expect_failed(octavo_command(with_plot), 2, "--plot is with cpu; supported: a GPU");
  expect_failed(octavo_command({"accuracy", "--device", "cpu", "--data", "x"}), 2, "data is 'x'");
}

TEST_F(Command, ExplainAndDevices) {
  const std::vector<std::string> arguments = {
      "explain",    "--device", "cpu",      "--preset", "wide",        "--causal", "bottom_right",
      "--kv-heads", "2",        "--window", "100,0",    "--precision", "fp8",      "--lse"};
  const Finished text = octavo_command(arguments);
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part : {"kernel", "config", "why", "workspace", "max error", "Hkv=2"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
  }
  auto with_json = arguments;
  with_json.insert(with_json.end(), {"--json", "-"});
  const json object = json::parse(octavo_command(with_json).out);
  expect_envelope(object, "explain");
  EXPECT_TRUE(object.contains("workspace_bytes"));
  expect_failed(octavo_command({"explain", "--preset", "wide", "--kv-heads", "3"}), 2, "3");
  const Finished modified =
      octavo_command({"explain", "--device", "cpu", "--preset", "wide", "--softcap", "30", "--bias",
                      "f16", "--mask", "--alibi", "--sinks", "--padded"});
  ASSERT_EQ(modified.code, 0) << modified.err;
  EXPECT_NE(modified.out.find("padded softcap=30 bias=f16 alibi mask sinks"), std::string::npos)
      << modified.out;

  const Finished table = octavo_command({"devices"});
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("cpu          yes"), std::string::npos) << table.out;
  const json devices = json::parse(octavo_command({"devices", "--json", "-"}).out);
  expect_envelope(devices, "devices");
  EXPECT_EQ(devices.at("devices").at(0).at("name"), "cpu");
  EXPECT_EQ(devices.at("devices").at(0).at("available"), true);
}

TEST_F(Command, NumpyReadsTheOutputFile) {
  if (run_program("python3", {"-c", "import numpy"}).code != 0) GTEST_SKIP() << "numpy is missing";
  ASSERT_EQ(octavo_command(run_arguments({"--out", o_})).code, 0);
  const std::string script =
      "import numpy as np, sys\n"
      "q, k, v, o = (np.load(p) for p in sys.argv[1:5])\n"
      "k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))\n"
      "s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[3])\n"
      "p = np.exp(s - s.max(-1, keepdims=True))\n"
      "assert np.abs(p / p.sum(-1, keepdims=True) @ v - o).max() < 1e-5\n"
      "np.save(sys.argv[5], q.astype(np.float16))\n";
  const std::string saved = directory_ / "saved.npy";
  const Finished python = run_program("python3", {"-c", script, q_, k_, v_, o_, saved});
  EXPECT_EQ(python.code, 0) << python.err;
  EXPECT_EQ(load_tensor("--q", saved)->dtype, DType::f16);
}

}  // namespace
}  // namespace octavo::cli
