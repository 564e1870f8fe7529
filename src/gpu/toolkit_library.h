// Where libraries of the CUDA toolkit are looked for.
#pragma once

#include <string>
#include <vector>

namespace octavo {

// What to try to open, in order. $`variable`, if set, is all there is; else the names as the loader
// finds them, then in the toolkit's folders ("lib64", "lib" and those given): of $CUDA_HOME, of
// $CUDA_PATH, of the usual places.
std::vector<std::string> toolkit_libraries(const char* variable,
                                           const std::vector<std::string>& names,
                                           const std::vector<std::string>& more_folders = {});

}  // namespace octavo
