// The text of everything a GPU runs (src/config and src/device), part of the library: NVRTC
// compiles it on machines that have no source tree.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace octavo {

struct EmbeddedSource {
  const char* name;  // as it is included: "device/sm80/forward.cuh"
  const char* text;
};

// All files, sorted by name. Generated at build time by tools/embed_sources.cmake.
std::span<const EmbeddedSource> embedded_sources();

// Null when there is none of that name.
const EmbeddedSource* find_embedded_source(std::string_view name);

// SHA-256, in hex, of the file and of everything it includes: what a kernel made from it depends
// on. A change of one kernel leaves the cubins of the others valid. Empty for an unknown name.
std::string sources_digest(std::string_view name);

}  // namespace octavo
