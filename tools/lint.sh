#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh [COMMIT]: runs clang-format over the tree, then clang-tidy (configured and explained in
# .clang-tidy) over every file of the build; with a commit only over those that have changed since this
# branch left it.
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
if (($#)); then
  files=$(git diff --name-only --diff-filter=d --merge-base "$1" -- '*.cc')
else
  files=$(tools/sources.sh | grep '\.cc$')
fi
files=$(grep -vE "$outside" <<<"$files" || true)
if [[ ! $files ]]; then
  echo "clang-tidy: no file has changed"
  exit 0
fi
xargs -P "${JOBS:-2}" -n 4 clang-tidy --quiet -p build-debug <<<"$files"
echo "clang-tidy: clean"
