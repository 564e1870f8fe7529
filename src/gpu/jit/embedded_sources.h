// The device sources (src/config and src/device) embedded in the library, so that NVRTC can compile
// them on machines without a source tree.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace octavo {

struct EmbeddedSource {
  const char* name;  // the include path: "device/sm80/forward.cuh"
  const char* text;
};

// All files, sorted by name. Generated at build time by tools/embed_sources.cmake.
std::span<const EmbeddedSource> embedded_sources();

// Null if there is no file of that name.
const EmbeddedSource* find_embedded_source(std::string_view name);

// SHA-256, in hex, of the file and of everything that it includes, so that a change of one kernel
// leaves the cubins of the others valid. Empty for an unknown name.
std::string sources_digest(std::string_view name);

}  // namespace octavo
