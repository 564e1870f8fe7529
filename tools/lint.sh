#!/usr/bin/env bash
# lint.sh: clang-format over the tree, then clang-tidy (.clang-tidy says what, and why) over every
# file of the build.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/sources.sh | xargs clang-format --dry-run -Werror
echo "clang-format: clean"

# The debug preset compiles file by file, so its list of commands has every file.
cmake --preset debug >/dev/null
# examples/ is a project of its own and not in the build's list of commands, nor is python/ where
# there is no nanobind.
outside='^examples/'
grep -q /python/src/ build-debug/compile_commands.json || outside='^examples/|^python/'
tools/sources.sh | grep '\.cc$' | grep -vE "$outside" |
  xargs -P "${JOBS:-2}" -n 4 clang-tidy --quiet -p build-debug
echo "clang-tidy: clean"
