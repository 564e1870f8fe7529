#!/usr/bin/env bash
# lint.sh: runs clang-format over the tree, then clang-tidy (configured and explained in
# .clang-tidy) over every file of the build.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/sources.sh | xargs clang-format --dry-run -Werror
echo "clang-format: clean"

# The debug preset has no unity build, so its compile commands list every file.
cmake --preset debug >/dev/null
# examples/ is a separate project and not in the build's compile commands, nor is python/ without
# nanobind.
outside='^examples/'
grep -q /python/src/ build-debug/compile_commands.json || outside='^examples/|^python/'
tools/sources.sh | grep '\.cc$' | grep -vE "$outside" |
  xargs -P "${JOBS:-2}" -n 4 clang-tidy --quiet -p build-debug
echo "clang-tidy: clean"
