// SPDX-License-Identifier: Apache-2.0
// Shell completion, from the description of the command.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace octavo::cli {

// The values that a flag completes to. None: the shell completes file names.
using ValuesOfFlag = std::vector<std::string> (*)(const std::string& flag);

struct CompletionShell {
  const char* name;
  std::string (*script)(const CLI::App& app, ValuesOfFlag values_of);
};
std::string bash_completion(const CLI::App& app, ValuesOfFlag values_of);
std::string zsh_completion(const CLI::App& app, ValuesOfFlag values_of);
std::string fish_completion(const CLI::App& app, ValuesOfFlag values_of);
inline constexpr std::array kCompletionShells = {CompletionShell{"bash", bash_completion},
                                                 CompletionShell{"zsh", zsh_completion},
                                                 CompletionShell{"fish", fish_completion}};

}  // namespace octavo::cli
