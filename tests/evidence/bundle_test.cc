// SPDX-License-Identifier: Apache-2.0
// A bundle matches its manifest, or the file that does not is named.
#include "evidence/gates/bundle.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/jit/sha256.h"
#include "gpu/temporary_directory.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class BundleTest : public testing::Test {
 protected:
  void SetUp() override {
    write("bench/bench.json", "{\"kind\": \"bench\"}");
    write("repro/gate.json", "{}");
    write("repro/empty.log", "");
    write_manifest();
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  void write_manifest(const std::string& kernels = "") {
    std::string text = "# made by a test\noctavo_bundle: 1\ncommit: \"1a2b3c\"\ngpu: null\n";
    text += "kernels:\n" + kernels + "files:\n";
    for (const char* path : {"bench/bench.json", "repro/gate.json", "repro/empty.log"}) {
      std::ifstream file(folder_ / path);
      const std::string content((std::istreambuf_iterator<char>(file)), {});
      const nlohmann::json entry = {{"path", path}, {"sha256", sha256_hex(content)}};
      text += "  - " + entry.dump() + "\n";
    }
    write("manifest.yaml", text);
  }
  std::string file_text(const std::string& path) const {
    std::ifstream file(folder_ / path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  BundleReport verify() const {
    const Result<BundleReport> report = verified();
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : BundleReport{};
  }
  Result<BundleReport> verified() const {
    const Result<Bundle> bundle = read_bundle_folder(folder_.string());
    return bundle.ok() ? verify_bundle(*bundle) : bundle.status();
  }
  std::string refusal() const { return verified().status().message(); }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
};

TEST_F(BundleTest, MatchesItsManifest) {
  const BundleReport report = verify();
  EXPECT_TRUE(report.passed()) << report.failures[0];
  EXPECT_EQ(report.files, 3);
  EXPECT_EQ(report.commit, "1a2b3c");
  EXPECT_EQ(report.gpu, "");
  EXPECT_EQ(report.not_compared, std::vector<std::string>{"kernels: the bundle has none."});
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["passed"], true);
  EXPECT_TRUE(json["gpu"].is_null());
}

TEST_F(BundleTest, ChangedByteIsDetected) {
  write("bench/bench.json", "{\"kind\": \"bencH\"}");
  const BundleReport report = verify();
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_EQ(report.failures[0],
            "bench/bench.json: does not have the digest that the manifest states.");
}

TEST_F(BundleTest, MissingAndAddedFilesAreDetected) {
  fs::remove(folder_ / "repro/gate.json");
  write("repro/more.json", "{}");
  const BundleReport report = verify();
  ASSERT_EQ(report.failures.size(), 2U);
  EXPECT_EQ(report.failures[0], "repro/gate.json: is missing.");
  EXPECT_EQ(report.failures[1], "repro/more.json: is not in the manifest.");
}

TEST_F(BundleTest, LinksAndOutsidePathsAreNotFollowed) {
  fs::rename(folder_ / "repro/gate.json", folder_ / "repro/real.json");
  fs::create_symlink("real.json", folder_ / "repro/gate.json");
  EXPECT_EQ(verify().failures[0], "repro/gate.json: is not a regular file.");
  std::ofstream(folder_ / "manifest.yaml", std::ios::app)
      << "  - {\"path\": \"../outside\", \"sha256\": \"\"}\n";
  EXPECT_EQ(verify().failures[1], "../outside: is not a path inside the bundle.");
}

TEST_F(BundleTest, KernelsAreComparedWithTheBuild) {
  const auto entry = [](const KernelInfo& info, const std::string& sha256) {
    return "  - " +
           nlohmann::json{{"config", info.config},
                          {"arch", info.arch},
                          {"kind", info.ptx ? "ptx" : "cubin"},
                          {"compiler", info.compiler},
                          {"sha256", sha256}}
               .dump() +
           "\n";
  };
  KernelInfo built;
  built.config = "Sm90ForwardConfig{.stages=2}";
  built.arch = 90;
  built.compiler = "NVRTC 13.0";
  built.sha256 = std::string(64, 'a');
  KernelInfo older = built;
  older.compiler = "NVRTC 12.8";
  const auto verify_with = [this](const std::vector<KernelInfo>& here) {
    return evidence::verify_bundle_with(read_bundle_folder(folder_.string()).value(),
                                        [&] { return here; })
        .value();
  };

  write_manifest(entry(built, built.sha256) + entry(older, "bb"));
  BundleReport report = verify_with({built});
  EXPECT_TRUE(report.passed()) << report.failures[0];
  EXPECT_EQ(report.kernels, 2);
  EXPECT_EQ(report.kernels_compared, 1) << "another compiler makes another image";
  ASSERT_EQ(report.not_compared.size(), 1U);
  EXPECT_TRUE(report.not_compared[0].starts_with("1 kernels:")) << report.not_compared[0];

  write_manifest(entry(built, std::string(64, '0')));
  report = verify_with({built});
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_EQ(report.failures[0],
            "kernel Sm90ForwardConfig{.stages=2} sm_90: the one in this build is different.");
  report = verify_with({});
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.not_compared[0], "kernels: none is compiled into this library.");
}

TEST_F(BundleTest, InvalidBundleIsRefused) {
  write("manifest.yaml", "octavo_bundle: 2\nfiles:\nkernels:\n");
  EXPECT_EQ(refusal(), "bundle is version 2; supported: 1.");
  write("manifest.yaml", "octavo_bundle: 1\nfiles:\n");
  EXPECT_EQ(refusal(), "bundle is a manifest without files or kernels; supported: lists of both.");
  write("manifest.yaml", "octavo_bundle: 1\nfiles:\n  - {\"path\"\nkernels:\n");
  EXPECT_NE(refusal().find("line 3 of its manifest"), std::string::npos) << refusal();
  write("manifest.yaml", "octavo_bundle: 1\nfiles:\n  - {\"sha256\": \"\"}\nkernels:\n");
  EXPECT_NE(refusal().find("repro.sh writes it"), std::string::npos) << refusal();
  fs::remove(folder_ / "manifest.yaml");
  EXPECT_NE(refusal().find("a folder with a manifest.yaml"), std::string::npos) << refusal();
}

TEST_F(BundleTest, FifosDevicesAndLinksAreNotRead) {
  // A FIFO would wait for a writer, and /dev/zero has no end.
  fs::remove(folder_ / "repro/gate.json");
  ASSERT_EQ(::mkfifo((folder_ / "repro/gate.json").c_str(), 0600), 0);
  EXPECT_EQ(verify().failures, std::vector<std::string>{"repro/gate.json: is not a regular file."});
  fs::remove(folder_ / "repro/gate.json");
  fs::create_symlink("/dev/zero", folder_ / "repro/gate.json");
  EXPECT_EQ(verify().failures, std::vector<std::string>{"repro/gate.json: is not a regular file."});

  fs::rename(folder_ / "bench", folder_ / "repro/elsewhere");
  fs::create_directory_symlink("repro/elsewhere", folder_ / "bench");
  EXPECT_EQ(verify().failures[0], "bench/bench.json: is missing.") << "not through the link";
  for (const char* const target : {"/dev/zero", "repro/empty.log"}) {
    fs::remove(folder_ / "manifest.yaml");
    fs::create_symlink(target, folder_ / "manifest.yaml");
    EXPECT_NE(refusal().find("a folder with a manifest.yaml"), std::string::npos) << refusal();
  }
  fs::remove(folder_ / "manifest.yaml");
  ASSERT_EQ(::mkfifo((folder_ / "manifest.yaml").c_str(), 0600), 0);
  EXPECT_NE(refusal().find("a folder with a manifest.yaml"), std::string::npos) << refusal();
}

TEST_F(BundleTest, EmptyBundleDoesNotVerify) {
  fs::remove_all(folder_ / "bench");
  fs::remove_all(folder_ / "repro");
  write("manifest.yaml", "octavo_bundle: 1\ngpu: null\nkernels:\nfiles:\n");
  EXPECT_EQ(verify().failures, std::vector<std::string>{"files: the bundle has none."});
}

TEST_F(BundleTest, ManifestNamesWhatIsSafeInAPath) {
  const std::string good = file_text("manifest.yaml");
  const auto with_gpu = [&](const std::string& gpu) {
    std::string text = good;
    text.replace(text.find("gpu: null"), 9, "gpu: " + gpu);
    write("manifest.yaml", text);
    return verify().failures;
  };
  EXPECT_TRUE(with_gpu(R"("NVIDIA A100-SXM4-80GB")").empty());
  EXPECT_EQ(verify().gpu, "NVIDIA A100-SXM4-80GB");
  for (const char* const gpu : {R"("../..")", R"("a/b")", R"(".x")", "7", "[]", R"("a\nb")"})
    EXPECT_EQ(with_gpu(gpu).size(), 1U) << gpu;
  EXPECT_EQ(verify().gpu, "");
}

TEST_F(BundleTest, ManifestIsUnambiguousAndBounded) {
  const std::string good = file_text("manifest.yaml");
  write("manifest.yaml", good + "gpu: \"another\"\n");
  EXPECT_NE(refusal().find("a key for the second time"), std::string::npos) << refusal();
  write("manifest.yaml", good + good.substr(good.rfind("  - ")));
  EXPECT_EQ(verify().failures,
            std::vector<std::string>{"repro/empty.log: is in the manifest twice."});
  write("manifest.yaml", good + "  - " + std::string(1 << 20, '[') + "\n");
  EXPECT_NE(refusal().find("its value"), std::string::npos) << refusal();
  write("manifest.yaml", good + std::string(5 << 20, '\n'));
  EXPECT_NE(refusal().find("up to 4 MiB"), std::string::npos) << refusal();
}

TEST_F(BundleTest, IsWrittenAsItWasVerified) {
  const Bundle bundle = read_bundle_folder(folder_.string()).value();
  write("bench/bench.json", "forged after it was read");
  const TemporaryDirectory elsewhere;
  const fs::path copy = fs::path(elsewhere.path()) / "copy";
  ASSERT_TRUE(write_bundle(bundle, copy.string()).ok());
  std::ifstream file(copy / "bench/bench.json");
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "{\"kind\": \"bench\"}");
  EXPECT_EQ(write_bundle(bundle, copy.string()).code(), ErrorCode::invalid_argument) << "not new";
}

TEST_F(BundleTest, BrokenBundleIsNotWritten) {
  Bundle bundle;
  bundle.files["a/b"] = "x";
  bundle.files["a/b/c"] = "a is not a folder";
  const fs::path copy = folder_ / "copy";
  EXPECT_FALSE(write_bundle(bundle, copy.string()).ok());
  EXPECT_FALSE(fs::exists(copy));
  bundle.files = {{"../escaped", "x"}};
  EXPECT_FALSE(write_bundle(bundle, copy.string()).ok());
  EXPECT_FALSE(fs::exists(copy));
  EXPECT_FALSE(fs::exists(folder_ / "escaped"));
}

}  // namespace
}  // namespace octavo
