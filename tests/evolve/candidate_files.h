// SPDX-License-Identifier: Apache-2.0
// The corpora of this folder: each file is a patch of one kernel of the ladder, with a title and
// the gate that has to stop it in the lines before it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "evolve/gate.h"

namespace octavo::evolve {

struct CandidateFile {
  std::string name, caught_by, patch;
};

inline std::vector<CandidateFile> candidate_files(const std::string& folder) {
  std::vector<CandidateFile> files;
  const std::filesystem::path root =
      std::filesystem::path(OCTAVO_SOURCE_DIR "/tests/evolve") / folder;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().extension() != ".patch") continue;
    std::ifstream in(entry.path());
    CandidateFile file;
    file.name = entry.path().stem();
    std::string title;
    std::getline(in, title);
    std::getline(in, file.caught_by);
    constexpr std::string_view kMark = "Caught by: ";
    EXPECT_TRUE(file.caught_by.starts_with(kMark)) << entry.path();
    file.caught_by.erase(0, kMark.size());
    std::ostringstream rest;
    rest << in.rdbuf();
    file.patch = rest.str();
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  EXPECT_FALSE(files.empty()) << root;
  return files;
}

inline Task ladder_task() {
  Task task;
  task.kernel = "ladder";
  task.base_config = "rung=async_copies,head_dim=64";
  task.device = {Device::Kind::emulator, 90};
  return task;
}

inline Candidate ladder_candidate(const std::string& patch) {
  Candidate candidate;
  candidate.kernel = "ladder";
  candidate.config = ladder_task().base_config;
  candidate.patch = patch;
  return candidate;
}

}  // namespace octavo::evolve
