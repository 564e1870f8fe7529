#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# headers_test.sh SRC CXX NVCC: each header of config/ compiles alone with the host compiler, each
# header with a kernel with nvcc, for its chip, and with OCTAVO_TEST_LONG each header of device/ with
# the host compiler, which otherwise compiles them in the emulator. That every header compiles alone
# as CUDA is tested with NVRTC, which is faster. Exit code 77: there is no nvcc, and the rest passed.
set -uo pipefail
src=$1 cxx=$2 nvcc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A compiler that hangs ends by its CPU time: wall time says more about the machine's load.
ulimit -t 120

# check HEADER: prints the errors, if there are any.
check() {
  local name=${1//\//_} flags=(-std=c++20 "-I$src")
  printf '#include "%s"\n' "$1" >"$work/$name.cu"
  [[ $1 != config/* && -z ${OCTAVO_TEST_LONG:-} ]] ||
    "$cxx" "${flags[@]}" -x c++ -Wall -Wextra -Wpedantic -Wshadow -Werror \
      -fsyntax-only "$work/$name.cu" >"$work/$name.log" 2>&1 ||
    { echo "$1 under $cxx:" && cat "$work/$name.log"; }
  [[ -x $nvcc ]] && grep -q OCTAVO_KERNEL "$src/$1" || return 0
  local arch=80
  [[ $1 == */sm90/* ]] && arch=90a
  "$nvcc" "${flags[@]}" -Werror all-warnings -fatbin "-gencode=arch=compute_$arch,code=sm_$arch" \
    -o "$work/$name.fatbin" "$work/$name.cu" >"$work/$name.log" 2>&1 ||
    { echo "$1 under nvcc:" && cat "$work/$name.log"; }
}
export -f check
export src cxx nvcc work

headers=$(cd "$src" && find config device -name '*.h' -o -name '*.cuh' | sort)
[[ -n $headers ]] || { echo "there is no header under $src"; exit 1; }
xargs -P 2 -n 1 bash -c 'check "$0"' <<<"$headers" >"$work/failures"
cat "$work/failures"
[[ ! -s $work/failures ]] || exit 1
[[ -x $nvcc ]] || { echo "no nvcc: only the host compiler was asked"; exit 77; }
