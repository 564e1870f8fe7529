#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# headers_test.sh SRC CXX NVCC: each header of config/ compiles alone with the host compiler, and with
# OCTAVO_TEST_LONG each header of device/, which it otherwise compiles in the emulator. The headers
# with a kernel compile with nvcc, in one file for each chip: NVRTC, which is faster, compiles every
# header alone. Exit code 77: there is no nvcc, and the rest passed.
set -uo pipefail
src=$1 cxx=$2 nvcc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A compiler that hangs ends by its CPU time: wall time says more about the machine's load.
ulimit -t 120

# alone HEADER: prints the host compiler's errors, if there are any.
alone() {
  local name=${1//\//_}
  printf '#include "%s"\n' "$1" >"$work/$name.cc"
  "$cxx" -std=c++20 "-I$src" -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only \
    "$work/$name.cc" >"$work/$name.log" 2>&1 ||
    { echo "$1 under $cxx:" && cat "$work/$name.log"; }
}

# together ARCH HEADERS: prints the errors of nvcc.
together() {
  local arch=$1
  shift
  printf '#include "%s"\n' "$@" >"$work/sm_$arch.cu"
  "$nvcc" -std=c++20 "-I$src" -Werror all-warnings -fatbin \
    "-gencode=arch=compute_$arch,code=sm_$arch" -o "$work/sm_$arch.fatbin" "$work/sm_$arch.cu" \
    >"$work/sm_$arch.log" 2>&1 ||
    { echo "sm_$arch under nvcc:" && cat "$work/sm_$arch.log"; }
}

cd "$src" || exit 1
folders=config
[[ -z ${OCTAVO_TEST_LONG:-} ]] || folders+=' device'
# shellcheck disable=SC2086
headers=$(find $folders -name '*.h' -o -name '*.cuh')
mapfile -t kernels < <(grep -lr OCTAVO_KERNEL device | grep -v device/ptx/target.cuh)
mapfile -t hopper < <(printf '%s\n' "${kernels[@]}" | grep /sm90/)
mapfile -t others < <(printf '%s\n' "${kernels[@]}" | grep -v /sm90/)
[[ -n $headers && ${#hopper[@]} -gt 0 && ${#others[@]} -gt 0 ]] ||
  { echo "there are no headers under $src"; exit 1; }
{
  for header in $headers; do alone "$header"; done
  if [[ -x $nvcc ]]; then
    together 80 "${others[@]}"
    together 90a "${hopper[@]}"
  fi
} >"$work/failures"
cat "$work/failures"
[[ ! -s $work/failures ]] || exit 1
[[ -x $nvcc ]] || { echo "no nvcc: only the host compiler was asked"; exit 77; }
