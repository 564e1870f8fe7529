#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh MINUTES: runs every fuzz target under the address and undefined-behaviour sanitizers,
# MINUTES of wall-clock time in all. It uses libFuzzer if clang has it, else the plain driver. New
# inputs go to <build folder>/found/; a crash gives a non-zero exit code.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-10}
jobs=${JOBS:-2}
if echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  clang++ -fsanitize=fuzzer -x c++ - -o /dev/null >/dev/null 2>&1; then
  preset=fuzz
else
  preset=asan
fi
cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$jobs"

folder=build-$preset
targets=($(ls tests/fuzz/corpus))
seconds=$((minutes * 60 * jobs / ${#targets[@]}))
echo "${#targets[@]} targets ($preset), $seconds s each, $jobs at a time"
for target in "${targets[@]}"; do mkdir -p "$folder/found/$target"; done
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} sh -c \
  "$folder/tests/fuzz/fuzz_{} -max_total_time=$seconds -timeout=20 -print_final_stats=1 \
   -artifact_prefix=$folder/found/crash_{}_ $folder/found/{} tests/fuzz/corpus/{} \
   >$folder/found/{}.log 2>&1; rc=\$?; tail -n 12 $folder/found/{}.log | sed 's/^/{}: /'; exit \$rc"
echo "fuzz: nothing found"
