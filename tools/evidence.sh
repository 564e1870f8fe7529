#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# evidence.sh: reproduces everything that is claimed of a family of kernels on the GPU of this
# machine: build, check, repeats, sanitizers, times, and the comparison with other libraries in one
# process. A failed step does not stop the others; its name and exit code 1 come at the end.
#
#   tools/evidence.sh FAMILY|live|all [--out FOLDER] [--bundle FOLDER] [--commit HASH]
#                     [--build FOLDER] [--jobs N] [--without STEP]... [--peers FOLDER]
#                     [--parts PART,...] [--seconds N]
#
# FAMILY is a value of OCTAVO_KERNELS (docs/users.md). `live` is the part of sm90 that compares with
# live peers. `all` runs ./repro.sh, sm80 and sm90 on one build, and makes their bundles the evidence
# of this GPU: JSON, pages, manifest and the README's tables, all of one commit.
#
# Reports go to FOLDER, evidence/<the GPU's name> by default. With --bundle they are packed instead,
# with a manifest, for tools/adopt_bundle.py. HASH comes from git by default: a copy of the tree may
# have no git. A build FOLDER is used as it is, such as that of repro.sh; otherwise one is built, for
# a FAMILY without embedded kernels. N checks run in parallel, by default half as many as there are
# cores; timed steps run alone. --without skips a STEP, such as the bench and compare that repro.sh
# does too, and the end lists it. $PYTHON is the Python that has PyTorch, python3 by default. For
# sm90, three times as many random problems are checked, and the 8-bit modes have checks of their own.
#
# --peers names builds of FlashAttention-3, compressed by xz or not (python/octavo/_peers.py), by
# default $OCTAVO_PEERS or runs/peers if it exists. A PART of the live comparison is forward,
# models, fp8 or backward; all but backward by default. N seconds are divided among the parts, and
# cases that do not fit are listed as not measured. For `live` they are 230, so that it takes less
# than six minutes with its build; for sm90 there is no limit.
set -uo pipefail
usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

(($#)) || usage
family=$1 out='' bundle='' commit='' folder='' without=() jobs=$(($(nproc) / 2 > 0 ? $(nproc) / 2 : 1))
peers=${OCTAVO_PEERS:-} parts='forward,models,fp8' seconds=''
shift
while (($#)); do
  case $1 in
    --out) out=${2:?} ;;
    --bundle) bundle=$(mkdir -p "${2:?}" && cd "$2" && pwd) || exit 2 ;;
    --peers) peers=${2:?} ;;
    --parts)
      parts=${2:?}
      [[ $parts =~ ^(forward|models|fp8|backward)(,(forward|models|fp8|backward))*$ ]] || usage
      ;;
    --seconds)
      seconds=${2:?}
      [[ $seconds =~ ^[1-9][0-9]*$ ]] || usage
      ;;
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
[[ -z $peers || ! -e $peers ]] || peers=$(realpath "$peers")
cd "$(dirname "$0")/.." || exit 2
[[ -n $peers || ! -d runs/peers ]] || peers=$PWD/runs/peers
export OCTAVO_PEERS=$peers

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
touch "$logs/start"
if [[ -n $bundle ]]; then
  out=$logs/bundle
  mkdir "$out"
elif [[ -z $out && $family != all ]]; then
  gpu=$(nvidia-smi -i 0 --query-gpu=name --format=csv,noheader) || exit 2
  out=$PWD/evidence/$(tr '[:upper:] ' '[:lower:]-' <<<"$gpu")
  mkdir -p "$out"
fi
if [[ -z $commit ]] && commit=$(git rev-parse HEAD 2>/dev/null); then
  [[ -z $(git status --porcelain --untracked-files=no) ]] || commit+=-dirty
fi
python=${PYTHON:-python3}

if [[ $family == all ]]; then
  if [[ $commit == *-dirty ]]; then
    echo "evidence.sh: the tree differs from its commit; supported by all: a tree as committed." >&2
    exit 2
  fi
  [[ -n $bundle ]] || bundle=$PWD/artifacts
  mkdir -p "$bundle"
  failed=()
  more=(${commit:+--commit "$commit"})
  ./repro.sh --out "$logs/repro" "${more[@]}" || failed+=(repro)
  mv "$logs"/repro/repro_bundle_*.tar.gz "$logs/" || exit 1
  for one in sm80 sm90; do
    tools/evidence.sh $one --build build-repro --bundle "$logs" --jobs "$jobs" "${more[@]}" || failed+=("$one")
  done
  cp "$logs"/*.tar.gz "$bundle/"
  "$python" tools/adopt_bundle.py "$logs"/*.tar.gz --command build-repro/octavo || failed+=(adopt)
  ((${#failed[@]} == 0)) || echo "failed: ${failed[*]}"
  exit $((${#failed[@]} > 0))
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
# For timed steps alone, all kernels are compiled in parallel with the build, not one by one.
build() {
  local log=build/evidence.log shipped=OFF
  [[ $family != live ]] || shipped=ON
  mkdir -p build
  if ! cmake --preset release -DOCTAVO_TESTS=OFF -DOCTAVO_SHIPPED_KERNELS=$shipped >$log 2>&1 ||
    ! cmake --build --preset release --parallel "$(nproc)" >>$log 2>&1; then
    tail -n 40 $log
    return 1
  fi
}
# unpack: the builds of FlashAttention-3, while the library is built.
unpack() {
  local packed
  for packed in "$peers"/*.so.xz; do
    [[ ! -f $packed || -f ${packed%.xz} ]] || xz -dk "$packed" &
  done
  wait
}
[[ ! -d $peers ]] || unpack &
unpacking=$!
if [[ -z $folder ]]; then
  folder=$PWD/build
  step build build
fi
wait $unpacking
((${#failed[@]} == 0)) || exit 1

# PyTorch brings its own NVRTC; all steps must use the same compiler.
nvrtc=$(sed -n 's/^OCTAVO_NVRTC:FILEPATH=//p' "$folder/CMakeCache.txt")
[[ -f $nvrtc ]] && export OCTAVO_NVRTC=$nvrtc
export OCTAVO_CACHE_DIR=${OCTAVO_CACHE_DIR:-$folder/evidence-cache}
octavo=$folder/octavo

# A regime's share of the seconds: WEIGHTS has `burst sustained` of each part.
declare -A weights=([forward]='50 110' [models]='25 50' [fp8]='40 85' [backward]='60 60')
budgets() {
  local part burst sustained sum=0
  [[ -n $seconds ]] || return 0
  for part in ${parts//,/ }; do
    read -r burst sustained <<<"${weights[$part]}"
    ((sum += burst + sustained))
  done
  read -r burst sustained <<<"${weights[$1]}"
  echo --burst-budget $((seconds * burst / sum)) --sustained-budget $((seconds * sustained / sum))
}
# live: the comparison with live peers, part by part. Models run on the kernels that users get.
live() {
  local part known=(--library "$folder/liboctavo.so" --regimes 'burst,sustained' ${commit:+--commit "$commit"})
  local torch=("$python" tools/compare_torch.py --command "$octavo" "${known[@]}" --peers 'fa3,cudnn,flash' --least 0.99)
  local -A into=([forward]=compare [models]=models [fp8]=8bit [backward]=backward)
  local grid=(--grid bench/grid_sm90.csv) run
  for part in ${parts//,/ }; do
    case $part in
      forward) run=(env OCTAVO_KERNELS=sm90 "${torch[@]}" "${grid[@]}" --recorded bench/peers_h200.csv) ;;
      models) run=("${torch[@]}" --models bench/models.csv) ;;
      fp8) run=(env OCTAVO_KERNELS=sm90 "$python" tools/compare_8bit.py "${known[@]}") ;;
      backward)
        run=("${torch[@]}" "${grid[@]}" --mode backward --peers 'fa3,fa3_deterministic,cudnn,flash')
        ;;
    esac
    # shellcheck disable=SC2046  # the budgets are words
    step "live, $part" "${run[@]}" $(budgets "$part") --json "$out/sm90_${into[$part]}.json"
  done
}
# finish: tables or a bundle, and what failed.
finish() {
  local name
  if [[ -n $bundle ]]; then
    name=evidence_${family}_${commit:0:7}_$(date -u +%Y%m%dT%H%M%SZ)
    step bundle pack "$name"
  else
    step manifest renew
    step tables "$python" tools/evidence_tables.py --folder "$out"
  fi
  printf '\n%s s in all; %s\n' "$SECONDS" "${bundle:-$out}"
  ((${#not_done[@]} == 0)) || printf 'not done: %s\n' "${not_done[@]}"
  if ((${#failed[@]})); then
    echo "failed: ${failed[*]}"
    exit 1
  fi
  echo "all steps passed"
  exit 0
}
# renew: the digests of the reports that this run wrote, where the folder has a manifest.
renew() {
  find "$out" -type f -newer "$logs/start" ! -name '*.md' ! -name manifest.yaml -printf '%P\0' |
    xargs -0 -r "$python" tools/manifest.py --folder "$out" ${commit:+--commit "$commit"} --renew
}
pack() {
  "$python" tools/manifest.py --folder "$out" --command "$octavo" --commit "${commit:-unknown}" &&
    tar -czf "$bundle/$1.tar.gz" --transform "s,^\.,$1," -C "$out" . &&
    "$octavo" evidence verify "$bundle/$1.tar.gz"
}
if [[ $family == live ]]; then
  seconds=${seconds:-230}
  live
  finish
fi

export OCTAVO_KERNELS=$family
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
if [[ $family != sm90 ]]; then
  step compare "$python" tools/compare_torch.py --library "$folder/liboctavo.so" --command "$octavo" \
    --json "$out/${family}_compare.json" ${commit:+--commit "$commit"}
else
  live
  step 'counters, 8 bits' "$octavo" counters --device cuda --precision fp8 --preset mission \
    --preset stress --shape 1,32,16384,64 --shape 1,16,16384,128 --shape 1,8,16384,256 \
    --json "$out/${family}_counters_8bit.json"
  step ladder env -u OCTAVO_KERNELS "$octavo" ladder --device cuda --json "$out/ladder.json"
  step accuracy env -u OCTAVO_KERNELS "$octavo" accuracy --device cuda --plot "$out/accuracy.svg" \
    --json "$out/accuracy.json"
fi
finish
