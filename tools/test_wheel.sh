#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test_wheel.sh PYTHON WHEEL: installs the wheel into an empty environment, on a PATH without a
# compiler, and uses it: an attention against the plain formula, and the command.
set -euo pipefail
cd "$(dirname "$0")/.."
usage="usage: test_wheel.sh PYTHON WHEEL"
python=$(command -v "${1:?$usage}")
wheel=$(realpath "${2:?$usage}")
checks=$(realpath tools/test_wheel.py)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet numpy
"$work/venv/bin/python" -m pip install --quiet --no-index --no-deps "$wheel"

# Everything below sees the environment and nothing else: no tools, and no cache of kernels.
mkdir "$work/home"
cd "$work/home"
clean() { env -i PATH="$work/venv/bin" HOME="$work/home" LC_ALL=C.UTF-8 "$@"; }
for tool in cc c++ g++ clang cmake nvcc; do
  if clean /bin/sh -c "command -v $tool" 2>/dev/null; then
    echo "test_wheel.sh: $tool can be seen." >&2
    exit 1
  fi
done
clean "$work/venv/bin/python" "$checks"
echo "${wheel##*/}: installed and used"
