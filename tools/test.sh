#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test.sh [sanitizers]: runs all tests in the release build; with `sanitizers`, instead, the modules
# that the asan and tsan presets name under these. A failure does not stop the rest; tests that did
# not run are listed by name.
# The Python frameworks, which only tests need, are downloaded while the release build compiles.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

summary=()
not_run=()
failed=0

# step PRESET FOLDER [ctest arguments]: configure, build and test.
step() {
  local preset=$1 folder=$2 start=$SECONDS built log name
  shift 2
  log=$folder/ctest.log
  printf '\n== %s\n' "$preset"
  if ! cmake --preset "$preset" -DOCTAVO_TESTS=ON ||
    ! cmake --build --preset "$preset" --parallel "${JOBS:-2}"; then
    summary+=("$preset: the build failed")
    failed=1
    return
  fi
  wait  # for the frameworks
  built=$((SECONDS - start))
  ctest --preset "$preset" "$@" 2>&1 | tee "$log"
  ((PIPESTATUS[0] == 0)) || failed=1
  summary+=("$preset: $(grep -E 'tests passed|No tests' "$log" | tail -1)" \
    "    (built in $built s, run in $((SECONDS - start - built)) s)")
  while read -r name; do
    not_run+=("$preset: $name")
  done < <(
    sed -nE 's/^[[:space:]]+[0-9]+ - (.*) \((Skipped|Disabled|Not Run)\)$/\1/p' "$log"
    # If ctest runs whole programs instead of single cases, the programs list them.
    [[ $preset != asan ]] ||
      sed -nE 's/^\[  SKIPPED \] (.*) \([0-9]+ ms\)$/\1/p' "$folder/Testing/Temporary/LastTest.log"
  )
}

case ${1:-} in
  sanitizers)
    step asan build-asan
    # Left out under tsan: tests that make hundreds of calls one after another, and all but one of
    # the CPU's instruction sets. They take most of the time and start no new kind of thread.
    calls='EveryPrecisionAndGranularity|EverySubset|EveryFormatOfEveryOperand|EveryDtypeAndHeadDimension'
    step tsan build-tsan -E "$calls|RandomProblems|EqualKeysGiveTheirValue|/(portable|AVX3|S+SE)"
    ;;
  "")
    tools/python_env.sh frameworks &
    step release build
    ;;
  *)
    echo "test.sh: the argument is '$1'; supported: sanitizers, or none." >&2
    exit 2
    ;;
esac

printf '\n== summary\n'
printf '%s\n' "${summary[@]}"
if ((${#not_run[@]})); then
  echo "Not run here, and so not passed:"
  printf '  %s\n' "${not_run[@]}"
else
  echo "Not run here: none"
fi
exit $failed
