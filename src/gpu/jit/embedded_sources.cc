// Finds embedded sources and what they include.
#include "gpu/jit/embedded_sources.h"

#include <set>

#include "gpu/jit/sha256.h"

namespace octavo {
namespace {

// Device code includes only embedded files, in quotes and by their path from src/, so matching the
// prefix of a line is enough.
void collect(std::string_view name, std::set<std::string_view>& found) {
  constexpr std::string_view kInclude = "#include \"";
  const EmbeddedSource* const source = find_embedded_source(name);
  if (source == nullptr || !found.insert(source->name).second) return;
  const std::string_view text = source->text;
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos;
       at = text.find(kInclude, at)) {
    at += kInclude.size();
    collect(text.substr(at, text.find('"', at) - at), found);
  }
}

}  // namespace

const EmbeddedSource* find_embedded_source(std::string_view name) {
  for (const EmbeddedSource& source : embedded_sources()) {
    if (name == source.name) return &source;
  }
  return nullptr;
}

std::string sources_digest(std::string_view name) {
  std::set<std::string_view> names;
  collect(name, names);
  if (names.empty()) return {};
  Sha256 hash;
  for (const std::string_view each : names) {
    hash.field(each).field(find_embedded_source(each)->text);
  }
  return hash.finish_hex();
}

}  // namespace octavo
