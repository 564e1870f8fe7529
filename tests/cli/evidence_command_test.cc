// SPDX-License-Identifier: Apache-2.0
// Runs the gate and evidence commands as processes: exit codes, error sentences, JSON.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace octavo::cli {
namespace {

TEST(GateCommand, ListsUnmeasuredGatesAndWritesJson) {
  const Finished finished =
      octavo_command({"gate", "--device", "cpu", "--cases", "2", "--kernels", "1", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err << finished.out;
  const nlohmann::json told = nlohmann::json::parse(finished.out);
  EXPECT_EQ(told["kind"], "gate");
  EXPECT_EQ(told["device"], "cpu");
  EXPECT_EQ(told["gates"][1]["name"], "correctness");
  EXPECT_EQ(told["gates"][1]["state"], "passed");
  EXPECT_EQ(told["gates"][2]["state"], "not measured");
  EXPECT_EQ(told["gates"][3]["reason"], "cpu has no counters; supported: GPUs.");
  EXPECT_GT(told["thresholds"].size(), 12U);
}

TEST(CountersCommand, WithoutAGpuIsNotMeasuredAndNotPassed) {
  const Finished finished = octavo_command({"counters", "--device", "cpu", "--preset", "mission"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.out.find("not measured: cpu has no counters"), std::string::npos)
      << finished.out;
  EXPECT_EQ(octavo_command({"counters", "--device", "cpu", "--shape", "1,0,512,64"}).code, 2);
}

TEST(GateCommand, ViolatedThresholdExitsWithOne) {
  const Directory directory;
  write_file(directory / "limits.json",
             R"({"kind": "thresholds", "thresholds": [{"gate": "correctness", "name": "cases",
                "at_least": 1000000, "verdict": "for this test", "reason": "cannot be held"}]})");
  const Finished finished = octavo_command({"gate", "--device", "cpu", "--cases", "1", "--kernels",
                                            "1", "--thresholds", directory / "limits.json"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.out.find("at least 1000000"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("blocked"), std::string::npos) << finished.out;
}

TEST(GateCommand, BadFileExitsWithTwo) {
  const Directory directory;
  EXPECT_EQ(octavo_command({"gate", "--baseline", directory / "none.json"}).code, 2);
  write_file(directory / "bad.json", "{");
  const Finished finished =
      octavo_command({"gate", "--device", "cpu", "--thresholds", directory / "bad.json"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_TRUE(finished.err.starts_with("octavo: thresholds is ")) << finished.err;
}

TEST(GateCommand, UnknownFamilyExitsWithTwo) {
  const Finished finished = octavo_command({"gate", "--device", "cpu", "--kernel-family", "sm70"});
  EXPECT_EQ(finished.code, 2);
  EXPECT_EQ(finished.err, "octavo: kernel_family is \"sm70\"; supported: sm80, sm90.\n");
}

class EvidenceCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(directory_ / "manifest.yaml",
               "octavo_bundle: 1\ncommit: \"1a2b3c\"\ngpu: null\nkernels:\nfiles:\n"
               "  - {\"path\": \"gate.json\", \"sha256\": "
               "\"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\"}\n");
    write_file(directory_ / "gate.json", "{}");
  }
  // A bundle as repro.sh packs it.
  std::string packed() {
    const std::string archive = elsewhere_ / "bundle.tar.gz";
    EXPECT_EQ(run_program("tar", {"-czf", archive, "--transform", "s,^\\.,bundle,", "-C",
                                  directory_ / ".", "."})
                  .code,
              0);
    return archive;
  }
  Directory directory_, elsewhere_;
};

TEST_F(EvidenceCommand, ValidBundleExitsWithZero) {
  for (const std::string& bundle : {directory_ / ".", packed()}) {
    const Finished finished = octavo_command({"evidence", "verify", bundle});
    EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
    EXPECT_NE(finished.out.find("1a2b3c"), std::string::npos) << finished.out;
  }
}

TEST_F(EvidenceCommand, TamperedOrMissingFileExitsWithOne) {
  write_file(directory_ / "gate.json", "[]");
  Finished finished = octavo_command({"evidence", "verify", packed()});
  EXPECT_EQ(finished.code, 1) << finished.err;
  EXPECT_NE(finished.out.find("gate.json: does not have the digest"), std::string::npos)
      << finished.out;
  std::filesystem::remove(directory_ / "gate.json");
  finished = octavo_command({"evidence", "verify", packed(), "--json", "-"});
  EXPECT_EQ(finished.code, 1) << finished.err;
  const nlohmann::json told = nlohmann::json::parse(finished.out);
  EXPECT_EQ(told["failures"][0], "gate.json: is missing.");
}

TEST_F(EvidenceCommand, InvalidBundleExitsWithTwo) {
  for (const std::string& bundle :
       {directory_ / "gate.json", directory_ / "none", elsewhere_ / "."}) {
    const Finished finished = octavo_command({"evidence", "verify", bundle});
    EXPECT_EQ(finished.code, 2) << bundle;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  }
}

TEST_F(EvidenceCommand, IrregularFilesInPlaceOfABundleExitWithTwo) {
  const std::string pipe = elsewhere_ / "bundle.tar.gz";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(octavo_command({"evidence", "verify", pipe}).code, 2) << "waits for a writer?";
  EXPECT_EQ(octavo_command({"evidence", "verify", "/dev/zero"}).code, 2);
}

TEST_F(EvidenceCommand, LinksInAnArchiveAreRefused) {
  std::filesystem::remove(directory_ / "gate.json");
  std::filesystem::create_symlink("/etc/passwd", directory_ / "gate.json");
  const Finished finished = octavo_command({"evidence", "verify", packed()});
  EXPECT_EQ(finished.code, 1) << finished.err;
  EXPECT_NE(finished.out.find("gate.json: is not a regular file"), std::string::npos);
}

TEST_F(EvidenceCommand, UnpacksOnlyWhatWasVerified) {
  const std::string folder = elsewhere_ / "unpacked";
  ASSERT_EQ(octavo_command({"evidence", "verify", packed(), "--unpack", folder}).code, 0);
  EXPECT_EQ(read_file(folder + "/gate.json"), "{}");
  EXPECT_EQ(octavo_command({"evidence", "verify", packed(), "--unpack", folder}).code, 2);
  write_file(directory_ / "gate.json", "[]");
  const std::string refused = elsewhere_ / "refused";
  EXPECT_EQ(octavo_command({"evidence", "verify", packed(), "--unpack", refused}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(refused));
}

TEST_F(EvidenceCommand, AnArchiveThatExpandsWithoutEndIsRefused) {
  const std::string bomb = elsewhere_ / "bomb.tar.gz";
  ASSERT_EQ(run_program("sh", {"-c", "head -c 200000000 /dev/zero | gzip -1 >" + bomb}).code, 0);
  const Finished finished = octavo_command({"evidence", "verify", bomb});
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.err.find("128 MiB"), std::string::npos) << finished.err;
}

}  // namespace
}  // namespace octavo::cli
