#!/usr/bin/env bash
# evidence.sh: reproduces everything that is claimed of a family of kernels on the GPU of this
# machine: build, check, repeats, sanitizers, times, and the comparison with PyTorch in one process.
# A failed step does not stop the others; its name and exit code 1 come at the end.
#
#   tools/evidence.sh FAMILY [--out FOLDER] [--commit HASH] [--build FOLDER] [--jobs N]
#                     [--without STEP]...
#
# FAMILY is a value of OCTAVO_KERNELS (docs/users.md). FOLDER is evidence/<the GPU's name> by
# default. HASH comes from git by default: a copy of the tree may have no git. A build FOLDER is
# used as it is, such as that of repro.sh; otherwise one is built without embedded kernels. N checks
# run in parallel, by default half as many as there are cores; timed steps run alone. --without
# skips a STEP, such as the bench and compare that repro.sh does too, and the end lists it. $PYTHON
# is the Python that has PyTorch, python3 by default. For sm90, three times as many random problems
# are checked, the 8-bit modes have checks of their own, and it is compared with every recorded
# peer.
set -uo pipefail
usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

(($#)) || usage
family=$1 out='' commit='' folder='' without=() jobs=$(($(nproc) / 2 > 0 ? $(nproc) / 2 : 1))
shift
while (($#)); do
  case $1 in
    --out) out=${2:?} ;;
    --without) without+=("${2:?}") ;;
    --build) folder=$(cd "${2:?}" && pwd) || exit 2 ;;
    --jobs)
      jobs=${2:?}
      [[ $jobs =~ ^[1-9][0-9]*$ ]] || usage
      ;;
    --commit)
      commit=${2:?}
      [[ $commit =~ ^[0-9a-f]{40}$ ]] || usage
      ;;
    *) usage ;;
  esac
  shift 2
done
[[ -z $out ]] || out=$(mkdir -p "$out" && cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 2

if [[ -z $out ]]; then
  gpu=$(nvidia-smi -i 0 --query-gpu=name --format=csv,noheader) || exit 2
  out=$PWD/evidence/$(tr '[:upper:] ' '[:lower:]-' <<<"$gpu")
  mkdir -p "$out"
fi
if [[ -z $commit ]] && commit=$(git rev-parse HEAD 2>/dev/null); then
  [[ -z $(git status --porcelain --untracked-files=no) ]] || commit+=-dirty
fi

failed=() not_done=()
# is_wanted NAME: false, and recorded as skipped, if --without names the step.
is_wanted() {
  local name
  for name in "${without[@]}"; do
    [[ $name != "$1" ]] || { not_done+=("$1") && return 1; }
  done
}
step() {
  local name=$1 start=$SECONDS
  is_wanted "$name" || return 0
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" || failed+=("$name")
  printf -- '-- %s: %s s\n' "$name" $((SECONDS - start))
}

# at_once NAME COMMAND...: starts a check in the background; `settle` waits for all of them and
# prints their output.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
checks=() running=0
at_once() {
  local name=$1 log=$logs/${#checks[@]}
  is_wanted "$name" || return 0
  shift
  if ((running == jobs)); then
    wait -n
    ((running -= 1))
  fi
  checks+=("$name: $*")
  { "$@" >"$log" 2>&1 || touch "$log.failed"; } &
  ((running += 1))
}
settle() {
  local i start=$SECONDS
  wait
  for i in "${!checks[@]}"; do
    printf '\n== %s\n' "${checks[i]}"
    tail -n 3 "$logs/$i"
    [[ ! -f $logs/$i.failed ]] || failed+=("${checks[i]%%: *}")
  done
  printf -- '-- %s checks, %s at once: waited %s s\n' ${#checks[@]} "$jobs" $((SECONDS - start))
}

if [[ ! -f build/CMakeCache.txt && -z ${CMAKE_GENERATOR:-} ]]; then
  CMAKE_GENERATOR=$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')
  export CMAKE_GENERATOR
fi
build() {
  local log=build/evidence.log
  mkdir -p build
  if ! cmake --preset release -DOCTAVO_TESTS=OFF -DOCTAVO_SHIPPED_KERNELS=OFF >$log 2>&1 ||
    ! cmake --build --preset release --parallel "$(nproc)" >>$log 2>&1; then
    tail -n 40 $log
    return 1
  fi
}
if [[ -z $folder ]]; then
  folder=$PWD/build
  step build build
fi
((${#failed[@]} == 0)) || exit 1

# PyTorch brings its own NVRTC; all steps must use the same compiler.
nvrtc=$(sed -n 's/^OCTAVO_NVRTC:FILEPATH=//p' "$folder/CMakeCache.txt")
[[ -f $nvrtc ]] && export OCTAVO_NVRTC=$nvrtc
export OCTAVO_KERNELS=$family OCTAVO_CACHE_DIR=${OCTAVO_CACHE_DIR:-$folder/evidence-cache}

octavo=$folder/octavo python=${PYTHON:-python3}
# The longest checks start first.
if [[ $family == sm90 ]]; then
  at_once 'check, configurations' "$octavo" check --device cuda --suite configs \
    --json "$out/${family}_check_configs.json"
fi
at_once check "$octavo" check --device cuda --json "$out/${family}_check.json"
if [[ $family == sm90 ]]; then
  for seed in 1 2; do
    at_once "check, seed $seed" "$octavo" check --device cuda --seed $seed \
      --json "$out/${family}_check_$seed.json"
  done
fi
at_once sanitize "$python" tools/sanitize.py --command "$octavo" --json "$out/${family}_sanitize.json"
at_once twelve "$octavo" check --device cuda --suite twelve --repeat 1000 \
  --json "$out/${family}_twelve.json"
if [[ $family == sm90 ]]; then
  at_once 'check, overlapping' "$octavo" check --device cuda --seed 2 --cases 600 --overlap-launch \
    --json "$out/${family}_check_overlap.json"
  at_once 'check, streams' "$octavo" check --device cuda --seed 3 --cases 600 --streams 8 \
    --json "$out/${family}_check_streams.json"
  # The emulator is built only with Boost.Context.
  "$octavo" devices | grep -q '^emulator:90 *yes' || without+=('check, emulated')
  at_once 'check, emulated' "$octavo" check --device cuda --suite emulated \
    --json "$out/${family}_check_emulated.json"
  mkdir -p "$out/${family}_8bit_checks"
  for seed in 7 8 9 10; do
    for mode in fp8 fp8_fast fp8_mixed int8 int8_mixed; do
      at_once "check, $mode, seed $seed" "$octavo" check --device cuda --cases 350 --seed $seed \
        --precision $mode --json "$out/${family}_8bit_checks/${mode}_$seed.json"
    done
  done
  at_once 'check, native' "$octavo" check --device cuda --cases 350 --seed 7 --precision native \
    --json "$out/${family}_8bit_checks/native_7.json"
fi
settle
step bench "$octavo" bench --device cuda --iters 2000 --json "$out/${family}_bench.json"
against=()
[[ $family != sm90 ]] || against=(--grid bench/grid_sm90.csv --peers "flash,cudnn" --least 0.97
  --recorded bench/peers_h200.csv)
step compare "$python" tools/compare_torch.py --library "$folder/liboctavo.so" --command "$octavo" \
  --json "$out/${family}_compare.json" "${against[@]}" ${commit:+--commit "$commit"}
if [[ $family == sm90 ]]; then
  step 'compare, 8 bits' "$python" tools/compare_8bit.py --library "$folder/liboctavo.so" \
    --json "$out/${family}_8bit.json" ${commit:+--commit "$commit"}
  step 'counters, 8 bits' "$octavo" counters --device cuda --precision fp8 --preset mission \
    --preset stress --shape 1,32,16384,64 --shape 1,16,16384,128 --shape 1,8,16384,256 \
    --json "$out/${family}_counters_8bit.json"
  step accuracy env -u OCTAVO_KERNELS "$octavo" accuracy --device cuda --plot "$out/accuracy.svg" \
    --json "$out/accuracy.json"
fi
((${#not_done[@]})) || rm -f "$out/${family}_commits.json"  # all of it now belongs to one commit
step tables "$python" tools/evidence_tables.py --folder "$out"

printf '\n%s s in all; %s\n' "$SECONDS" "$out"
((${#not_done[@]} == 0)) || printf 'not done: %s\n' "${not_done[@]}"
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all steps passed"
