// SPDX-License-Identifier: Apache-2.0
// Opens libraries at run time and looks up their functions.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo {

// Looks up symbols and remembers the first required one that is missing.
class SymbolLoader {
 public:
  using Find = std::function<void*(const char*)>;
  explicit SymbolLoader(Find find) : find_(std::move(find)) {}

  // Converts to the type of the function pointer that it initialises.
  struct Symbol {
    void* address = nullptr;
    template <class F>
    requires std::is_function_v<F>
    operator F*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<F*>(address);
    }
  };
  Symbol needed(const char* name) {
    void* const address = find_(name);
    if (address == nullptr && missing_.empty()) missing_ = name;
    return {address};
  }
  Symbol optional(const char* name) { return {find_(name)}; }

  const std::string& missing() const { return missing_; }

 private:
  Find find_;
  std::string missing_;
};

// The paths to try, in order. If the environment variable `variable` is set, only its value.
// Otherwise the plain names for the dynamic loader, then the toolkit's folders ("lib64", "lib" and
// those given) under $CUDA_HOME, $CUDA_PATH and the usual install locations.
inline std::vector<std::string> toolkit_libraries(
    const char* variable, const std::vector<std::string>& names,
    const std::vector<std::string>& more_folders = {}) {
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
