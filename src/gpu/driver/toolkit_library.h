// Search paths for libraries of the CUDA toolkit.
#pragma once

#include <string>
#include <vector>

namespace octavo {

// The paths to try, in order. If the environment variable `variable` is set, only its value.
// Otherwise the plain names for the dynamic loader, then the toolkit's folders ("lib64", "lib" and
// those given) under $CUDA_HOME, $CUDA_PATH and the usual install locations.
std::vector<std::string> toolkit_libraries(const char* variable,
                                           const std::vector<std::string>& names,
                                           const std::vector<std::string>& more_folders = {});

}  // namespace octavo
