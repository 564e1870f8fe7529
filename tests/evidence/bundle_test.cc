// A bundle matches its manifest, or the file that does not is named.
#include "evidence/gates/bundle.h"

#include <gtest/gtest.h>

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
  BundleReport verify() const {
    const Result<BundleReport> report = verify_bundle(folder_.string());
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : BundleReport{};
  }
  std::string refusal() const { return verify_bundle(folder_.string()).status().message(); }

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
            "bench/bench.json: is not the file that the manifest has the digest of.");
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
    return evidence::verify_bundle_with(folder_.string(), here).value();
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
            "kernel Sm90ForwardConfig{.stages=2} sm_90: the one built here is another.");
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

}  // namespace
}  // namespace octavo
