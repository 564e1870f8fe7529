#include "gpu/driver/toolkit_library.h"

#include <fmt/format.h>

#include <cstdlib>

namespace octavo {

std::vector<std::string> toolkit_libraries(const char* variable,
                                           const std::vector<std::string>& names,
                                           const std::vector<std::string>& more_folders) {
  if (const char* named = std::getenv(variable); named != nullptr && *named != '\0') {
    return {named};
  }
  std::vector<std::string> list = names;
  std::vector<std::string> roots = {"/usr/local/cuda", "/opt/cuda"};
  for (const char* home : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = std::getenv(home); root != nullptr && *root != '\0') {
      roots.insert(roots.begin(), root);
    }
  }
  std::vector<std::string> folders = {"lib64", "lib"};
  folders.insert(folders.end(), more_folders.begin(), more_folders.end());
  for (const std::string& root : roots) {
    for (const std::string& folder : folders) {
      for (const std::string& name : names)
        list.push_back(fmt::format("{}/{}/{}", root, folder, name));
    }
  }
  return list;
}

}  // namespace octavo
