// SPDX-License-Identifier: Apache-2.0
// Missing or outdated components of a machine, with a fake driver and a fake compiler: the command
// prints one sentence and uses the next best path, and never crashes.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace octavo::cli {
namespace {

using nlohmann::json;

class NextBestPath : public testing::Test {
 protected:
  void SetUp() override {
    set("LD_LIBRARY_PATH", OCTAVO_FAKE_CUDA);
    set("OCTAVO_NVRTC", OCTAVO_FAKE_NVRTC);
    set("OCTAVO_CACHE_DIR", directory_ / "cache");
  }
  void TearDown() override {
    for (const std::string& variable : variables_) unsetenv(variable.c_str());
  }
  void set(const std::string& variable, const std::string& value) {
    setenv(variable.c_str(), value.c_str(), 1);
    variables_.push_back(variable);
  }

  static std::vector<std::string> with_shape(const std::string& command, const std::string& device,
                                             const std::string& shape) {
    return {command, "--device", device, "--shape", shape, "--dtype", "f16", "--json", "-"};
  }
  // The output of a command that must succeed.
  static json said(const std::vector<std::string>& arguments) {
    const Finished finished = octavo_command(arguments);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out, nullptr, false);
  }
  static json explained(const std::string& device, const std::string& shape = "1,8,512,64") {
    return said(with_shape("explain", device, shape));
  }
  static json gpu() {
    const json found = said({"devices", "--json", "-"});
    for (const json& device : found.at("devices"))
      if (device.at("name") == "cuda:0") return device;
    ADD_FAILURE() << found;
    return {};
  }
  // The error sentence of a command: one line, and nothing else.
  static std::string refused(const std::vector<std::string>& arguments, int code) {
    const Finished finished = octavo_command(arguments);
    EXPECT_EQ(finished.code, code) << finished.err;
    EXPECT_EQ(finished.out, "");
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    return finished.err;
  }
  static void expect_has(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\n has no " << part;
  }
  // No GPU can be used: every command says `why`, and "auto" computes on the CPU.
  static void expect_cpu(const std::string& why) {
    EXPECT_FALSE(gpu().at("available").get<bool>());
    expect_has(gpu().at("reason"), why);
    EXPECT_EQ(explained("auto").at("device"), "cpu");
    expect_has(explained("auto").at("reason"), why);
    EXPECT_EQ(said(with_shape("run", "auto", "1,1,32,64")).at("device"), "cpu");
  }

  const Directory directory_;
  std::vector<std::string> variables_;
};

TEST_F(NextBestPath, AGpuOlderThanAmpere) {
  set("FAKE_CUDA_ARCH", "75");
  expect_cpu("older than sm_80");
  for (const char* command : {"explain", "run"})
    expect_has(refused(with_shape(command, "cuda", "1,1,32,64"), 2), "sm_80 and later");
}

TEST_F(NextBestPath, ADriverWithoutANeededSymbol) {
  set("LD_LIBRARY_PATH", OCTAVO_FAKE_CUDA_WITHOUT_LAUNCH);
  expect_cpu("libcuda.so.1 has no cuLaunchKernelEx");
  expect_has(refused(with_shape("run", "cuda", "1,1,32,64"), 2), "has no cuLaunchKernelEx");
}

// A Hopper chip whose driver is too old for TMA: uses the kernels of every chip since Ampere.
TEST_F(NextBestPath, ADriverWithoutTensorMaps) {
  set("FAKE_CUDA_ARCH", "90");
  EXPECT_EQ(explained("cuda").at("kernel"), "sm90_forward");
  set("LD_LIBRARY_PATH", OCTAVO_FAKE_CUDA_WITHOUT_TENSOR_MAPS);
  const json found = explained("cuda");
  EXPECT_EQ(found.at("kernel"), "sm80_forward");
  expect_has(found.at("reason"), "the driver has no cuTensorMapEncodeTiled");
  EXPECT_EQ(said(with_shape("run", "cuda", "1,1,32,64")).at("device"), "cuda:0");
  set("OCTAVO_KERNELS", "sm90");
  expect_has(refused(with_shape("explain", "cuda", "1,8,512,64"), 2), "cuTensorMapEncodeTiled");
}

TEST_F(NextBestPath, DriverFileThatIsNotALibrary) {
  std::ofstream(directory_ / "libcuda.so.1") << "not a library";
  set("LD_LIBRARY_PATH", std::filesystem::path(directory_ / "libcuda.so.1").parent_path());
  expect_cpu("libcuda.so.1 cannot be opened");
}

TEST_F(NextBestPath, DriverThatFailsToInitialise) {
  set("FAKE_CUDA_INIT", "999");
  expect_cpu("cuInit failed with CUDA error 999");
  set("FAKE_CUDA_INIT", "100");
  expect_cpu("sees no GPU");
}

// The fake driver accepts no cubin for such a chip.
TEST_F(NextBestPath, NewerChipUsesPtx) {
  set("FAKE_CUDA_ARCH", "120");
  EXPECT_TRUE(gpu().at("available").get<bool>());
  for (const char* device : {"cuda", "auto"}) {
    const json found = explained(device);
    EXPECT_EQ(found.at("device"), "cuda:0");
    EXPECT_EQ(found.at("kernel"), "sm80_forward");
  }
  EXPECT_EQ(said(with_shape("run", "cuda", "1,1,32,64")).at("device"), "cuda:0");
}

// The embedded or compiled cubin is rejected, as by an older driver or another chip.
TEST_F(NextBestPath, RejectedCubinFallsBackToPtx) {
  unsetenv("OCTAVO_NVRTC");
  set("FAKE_CUDA_ARCH", "89");
  const auto arguments = with_shape("explain", "cuda", "1,8,512,64");
  const Finished usual = octavo_command(arguments);
  if (usual.err.find("NVRTC") != std::string::npos) GTEST_SKIP() << usual.err;
  ASSERT_EQ(usual.code, 0) << usual.err;
  for (const char* error : {"200", "209"}) {
    set("FAKE_CUDA_NO_CUBINS", error);
    EXPECT_EQ(said(arguments).at("device"), "cuda:0");
  }
  // Another error is not hidden.
  set("FAKE_CUDA_NO_CUBINS", "719");
  expect_has(refused(arguments, 1), "cuModuleLoadDataEx failed with CUDA error 719");
  EXPECT_EQ(explained("auto").at("device"), "cpu");
  expect_has(explained("auto").at("reason"), "CUDA error 719");
}

// No kernel with head_dim 256 is shipped.
TEST_F(NextBestPath, WithoutACompilerTheCacheStillServes) {
  const std::string shape = "1,8,512,256";
  set("FAKE_CUDA_ARCH", "120");
  EXPECT_EQ(explained("cuda", shape).at("device"), "cuda:0");
  set("OCTAVO_NVRTC", "/not/there/libnvrtc.so");
  EXPECT_EQ(explained("cuda", shape).at("device"), "cuda:0");

  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "cache"))
    std::ofstream(entry.path() / "kernel.ptx") << "something else";
  expect_has(refused(with_shape("explain", "cuda", shape), 2), "/not/there/libnvrtc.so");
}

TEST_F(NextBestPath, CompiledKernelsRemainWithoutTheCompiler) {
  unsetenv("OCTAVO_NVRTC");
  const auto arguments = with_shape("explain", "cuda", "1,8,512,256");
  const Finished made = octavo_command(arguments);
  if (made.err.find("NVRTC") != std::string::npos) GTEST_SKIP() << made.err;
  ASSERT_EQ(made.code, 0) << made.err;
  set("OCTAVO_NVRTC", "/not/there/libnvrtc.so");
  const json found = said(arguments);
  EXPECT_EQ(found, json::parse(made.out));
  const json where = said({"cache", "explain", found.at("config"), "--json", "-"});
  EXPECT_EQ(where.at("found"), "disk");
}

TEST_F(NextBestPath, WithoutACompilerAndAKernelTheCpuServes) {
  const std::string shape = "1,8,64,256";
  set("FAKE_CUDA_ARCH", "120");
  set("OCTAVO_NVRTC", "/not/there/libnvrtc.so");
  const json found = explained("auto", shape);
  EXPECT_EQ(found.at("device"), "cpu");
  expect_has(found.at("reason"), "/not/there/libnvrtc.so");
  expect_has(found.at("reason"), "No shipped kernel can replace");
  EXPECT_EQ(said(with_shape("run", "auto", shape)).at("device"), "cpu");
  expect_has(refused(with_shape("explain", "cuda", shape), 2), "No shipped kernel can replace");
  // The problem itself is invalid here, and no other device would serve it.
  expect_has(refused({"explain", "--shape", "1,3,64,64", "--kv-heads", "2"}, 2), "heads");
}

TEST_F(NextBestPath, WithoutACompilerTheNearestShippedKernelServes) {
  set("FAKE_CUDA_ARCH", "120");
  EXPECT_EQ(explained("cuda", "1,64,512,128").at("device"), "cuda:0");
  const json wanted = explained("cuda", "1,64,512,96");
  expect_has(wanted.at("config"), "head_dim=96");
  set("OCTAVO_CACHE_DIR", directory_ / "another");
  explained("cuda",
            "1,64,512,128");  // the cache now holds the shipped kernels, if none is embedded
  set("OCTAVO_NVRTC", "/not/there/libnvrtc.so");
  const json nearest = explained("cuda", "1,64,512,96");
  EXPECT_EQ(nearest.at("device"), "cuda:0");
  expect_has(nearest.at("config"), "head_dim=128");
  expect_has(nearest.at("reason"), "the nearest shipped kernel instead of");
  expect_has(nearest.at("reason"), "head_dim=96");
}

TEST_F(NextBestPath, UnwritableCacheOnlyCostsTime) {
  set("FAKE_CUDA_ARCH", "120");
  set("OCTAVO_CACHE_DIR", "/proc/octavo");
  const json found = explained("cuda", "1,8,512,256");
  EXPECT_EQ(found.at("device"), "cuda:0");
  expect_has(found.at("reason"), "The kernel cache cannot open /proc/octavo");
}

// The fake GPU computes nothing: every case that is run fails, and only those that a configuration
// refuses are not run.
TEST_F(NextBestPath, CasesThatAConfigurationRefusesAreNotFailures) {
  set("FAKE_CUDA_ARCH", "90");
  const Finished finished = octavo_command(
      {"check", "--device", "cuda", "--suite", "configs", "--cases", "120", "--json", "-"});
  EXPECT_EQ(finished.code, 1) << finished.err;
  const json report = json::parse(finished.out, nullptr, false);
  const auto not_run = report.at("not_run").get<std::int64_t>();
  EXPECT_GT(not_run, 0);
  EXPECT_LT(not_run, 60);
  EXPECT_GT(report.at("cases"), 60);
  for (const json& reason : report.at("not_run_reasons"))
    EXPECT_EQ(reason.get<std::string>().find("config"), 0U) << reason;
  for (const json& failure : report.at("failures"))
    EXPECT_EQ(failure.get<std::string>().find("run failed"), std::string::npos) << failure;
}

// The fake driver accepts every launch, so the remaining host cost can be measured.
TEST_F(NextBestPath, HostCostOfACallIsTimed) {
  set("FAKE_CUDA_ARCH", "90");
  const auto timed = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench",   "--device",           "cuda",   "--preset",
                                          "mission", "--skip-correctness", "--json", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return said(arguments).at("rows").at(0).at("host");
  };
  EXPECT_TRUE(timed({}).is_null());
  const json host = timed({"--host"});
  EXPECT_GT(host.at("run_ns"), host.at("bare_launch_ns"));
  EXPECT_GT(host.at("call_ns"), host.at("bare_launch_ns"));
  EXPECT_GT(host.at("bare_launch_ns"), 0);
  set("OCTAVO_KERNELS", "sm80");
  EXPECT_TRUE(timed({"--host"}).at("bare_launch_ns").is_null());
  expect_has(refused({"bench", "--device", "cpu", "--host"}, 2), "host is on with cpu");
}

TEST_F(NextBestPath, OutOfMemory) {
  set("FAKE_CUDA_ARCH", "120");
  set("FAKE_CUDA_MEMORY", "10000");
  const std::string sentence = refused(with_shape("run", "cuda", "1,1,64,64"), 1);
  expect_has(sentence, "8192 bytes could not be allocated on cuda:0");
  const json done = said(with_shape("run", "auto", "1,1,64,64"));
  EXPECT_EQ(done.at("device"), "cpu");
  expect_has(done.at("kernel").at("reason"), "could not be allocated on cuda:0");
}

// That driver reports 1000 us between any two events: the time is divided by the number of calls in
// between.
TEST_F(NextBestPath, EveryTimingMethodIsNamed) {
  const auto timed = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = with_shape("bench", "cuda", "1,8,512,64");
    words.insert(words.end(), {"--skip-correctness", "--iters", "40"});
    words.insert(words.end(), more.begin(), more.end());
    return said(words);
  };
  const json graph = timed({}), stream = timed({"--launch", "stream"});
  const json cold = timed({"--l2", "cold"}), rotating = timed({"--buffers", "3"});
  const auto median = [](const json& report) { return report.at("rows")[0].at("median_us"); };
  EXPECT_EQ(median(graph), 50) << "20 calls of a graph";
  EXPECT_EQ(median(stream), 50) << "20 calls of the host";
  EXPECT_EQ(median(cold), 1000) << "one call";
  EXPECT_EQ(cold.at("rows")[0].at("empty_us"), 1000);
  EXPECT_TRUE(graph.at("rows")[0].at("empty_us").is_null());
  EXPECT_EQ(graph.at("launch"), "graph");
  EXPECT_EQ(stream.at("launch"), "stream");
  EXPECT_EQ(cold.at("l2"), "cold");
  EXPECT_EQ(rotating.at("buffers"), 3);
  EXPECT_TRUE(graph.at("rows")[0].at("throttle").is_null()) << "no NVML";
}

TEST_F(NextBestPath, CountersWithoutCuptiAreNotMeasured) {
  set("OCTAVO_CUPTI", directory_ / "none.so");
  const Finished finished =
      octavo_command({"counters", "--device", "cuda", "--preset", "mission", "--json", "-"});
  EXPECT_EQ(finished.code, 1);
  const json report = json::parse(finished.out, nullptr, false);
  EXPECT_EQ(report.at("measured"), false);
  EXPECT_NE(
      report.at("not_measured").get<std::string>().find("CUPTI, which counts, cannot be opened"),
      std::string::npos)
      << report;
}

}  // namespace
}  // namespace octavo::cli
