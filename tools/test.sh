#!/usr/bin/env bash
# test.sh: all tests in the release build, then the rooms that the asan and tsan presets name
# under the sanitizers. A failure does not stop the rest; what did not run is listed by name.
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
  built=$((SECONDS - start))
  ctest --preset "$preset" "$@" 2>&1 | tee "$log"
  ((PIPESTATUS[0] == 0)) || failed=1
  summary+=("$preset: $(grep -E 'tests passed|No tests' "$log" | tail -1)" \
    "    (built in $built s, run in $((SECONDS - start - built)) s)")
  while read -r name; do
    not_run+=("$preset: $name")
  done < <(
    sed -nE 's/^[[:space:]]+[0-9]+ - (.*) \((Skipped|Disabled|Not Run)\)$/\1/p' "$log"
    # Where ctest runs programs and not cases, those say it themselves.
    [[ $preset != asan ]] ||
      sed -nE 's/^\[  SKIPPED \] (.*) \([0-9]+ ms\)$/\1/p' "$folder/Testing/Temporary/LastTest.log"
  )
}

step release build
step asan build-asan
# Hundreds of calls in one thread after another: half of the time, and no thread is new in them.
step tsan build-tsan -E EveryPrecisionAndGranularity

printf '\n== summary\n'
printf '%s\n' "${summary[@]}"
if ((${#not_run[@]})); then
  echo "Not run here, and so not passed:"
  printf '  %s\n' "${not_run[@]}"
else
  echo "Not run here: none"
fi
exit $failed
