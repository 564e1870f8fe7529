#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# repro.sh reproduces every published result: it builds from scratch, runs tests, gates, benchmarks and
# counters, and packs the results into a bundle that `octavo evidence verify` checks.
#
# usage: ./repro.sh [--tests quick|all|none] [--out FOLDER] [--build FOLDER] [--device NAME]
#                   [--baseline BENCH_JSON] [--counters COUNTERS_JSON] [--cases N] [--iters N]
#                   [--limit SECONDS] [--commit HASH]
#   --tests     quick (default): the tests of numeric, attention, runtime and evidence; all: every
#               release test
#   --out       folder for the artifacts (artifacts)
#   --build     an existing build folder, instead of a clean build in build-repro
#   --device    cpu, emulator, cuda; auto (default): the GPU if there is one
#   --baseline  recorded times for the performance gate
#   --counters  counters for the counters gate, instead of counting here
#   --cases     about how many cases each check runs; 0 (default): all
#   --iters     timed runs of a benchmark (2000 on a GPU, else 10)
#   --limit     time limit of one step, in seconds; a step that takes longer fails (1800)
#   --commit    commit of the sources; read from git by default, which a copy of the tree may lack
#
# Without a GPU, the steps that need one are skipped; the last lines of the output list them.
set -uo pipefail
cd "$(dirname "$0")" || exit 2

tests=quick out=artifacts build='' device=auto baseline='' counters='' cases=0 iters='' limit=1800 commit=''
while (($#)); do
  case $1 in
    --tests | --out | --build | --device | --baseline | --counters | --cases | --iters | --limit | --commit)
      (($# > 1)) || { echo "repro.sh: $1 has no value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "repro.sh: the option is '$1'; supported: those of --help." >&2; exit 2 ;;
  esac
done
case $tests in
  quick | all | none) ;;
  *) echo "repro.sh: --tests is '$tests'; supported: quick, all, none." >&2; exit 2 ;;
esac

python=${PYTHON:-python3}
for tool in cmake tar "$python"; do
  command -v "$tool" >/dev/null || { echo "repro.sh: $tool is missing (tools/setup.sh)" >&2; exit 2; }
done
[[ -n $commit ]] || commit=$(git rev-parse HEAD 2>/dev/null) || commit=unknown
mkdir -p "$out"
rm -rf "${out:?}"/{bench,ncu,repro,manifest.yaml,report.html,report.md}
mkdir -p "$out"/{bench,ncu,repro}
steps=$out/repro/steps.csv
echo "step,state,seconds,what" >"$steps"
failed=() skipped=()

# limited COMMAND... runs the command with the time limit; functions of this file limit themselves.
limited() {
  if [[ $(type -t "$1") == function ]]; then "$@"; else timeout -k 10 "$limit" "$@"; fi
}
# step NAME COMMAND... runs the command and writes its output to NAME.log.
step() {
  local name=$1 start=$SECONDS state="done"
  shift
  printf '%-12s ' "$name"
  if ! limited "$@" >"$out/repro/$name.log" 2>&1; then
    state=failed
    failed+=("$name")
    tail -n 5 "$out/repro/$name.log" | sed 's/^/    /'
  fi
  echo "$state, $((SECONDS - start)) s"
  echo "$name,$state,$((SECONDS - start))," >>"$steps"
}
# skip NAME REASON records a step that is not run.
skip() {
  skipped+=("$1: $2")
  echo "$1,not done,0,$2" >>"$steps"
}

# --- environment
environment() {
  uname -srm
  cmake --version | head -1
  "${CXX:-c++}" --version | head -1
  "$python" --version
  "$python" -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null || echo "no PyTorch"
  nvidia-smi 2>/dev/null || echo "no nvidia-smi"
}
step environment environment

# --- build
quick_tests="numeric;attention;runtime;evidence"
fresh_build() {
  local generator
  generator=$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')
  rm -rf build-repro
  local options=(-DOCTAVO_TESTS=OFF)
  [[ $tests == all ]] && options=(-DOCTAVO_TESTS=ON)
  [[ $tests == quick ]] && options=(-DOCTAVO_TESTS=ON "-DOCTAVO_TEST_MODULES=$quick_tests")
  CMAKE_GENERATOR=${CMAKE_GENERATOR:-$generator} cmake --preset release -B build-repro "${options[@]}" &&
    limited cmake --build build-repro --parallel "${JOBS:-$(nproc)}"
}
if [[ -n $build ]]; then
  skip build "--build $build was used"
else
  build="build-repro"
  step build fresh_build
fi
octavo=$build/octavo
[[ -x $octavo ]] || { echo "repro.sh: $octavo does not exist" >&2; exit 1; }

if [[ $device == auto ]]; then
  device=cpu
  "$octavo" devices | grep -Eq '^cuda:0 +yes' && device=cuda
fi

# --- tests
if [[ $tests == none ]]; then
  skip tests "--tests none"
else
  step tests ctest --test-dir "$build" --output-on-failure --parallel "${JOBS:-$(nproc)}"
fi

# --- measurements
step kernels "$octavo" kernels --json "$out/repro/kernels.json"
step check "$octavo" check --device "$device" --suite twelve --cases "$cases" --json "$out/bench/twelve.json"
# count NAME FLAGS... reads counters with CUPTI. A machine that cannot count does not fail; its
# counters are not measured.
count() {
  local file=$out/ncu/$1.json
  shift
  limited "$octavo" counters --device cuda "$@" --json "$file" || grep -q '"measured": false' "$file"
}
# Problems that fill the GPU, at every head dimension.
long=(--shape "1,32,16384,64" --shape "1,16,16384,128" --shape "1,8,16384,256")
if [[ $device == cuda && -z $counters ]]; then
  presets=(--preset mission --preset small --preset long --preset wide --preset stress)
  step counters count counters "${presets[@]}" "${long[@]}"
  step counters_causal count counters_causal --causal top_left "${long[@]}"
  if grep -q '"measured": true' "$out/ncu/counters.json" 2>/dev/null; then
    counters=$out/ncu/counters.json
    if command -v ncu >/dev/null; then
      step ncu env OCTAVO="$octavo" PYTHON="$python" tools/profile_ncu.sh mission 3 --out "$out/ncu"
    else
      skip ncu "no ncu"
    fi
  fi
elif [[ -n $counters ]]; then
  cp "$counters" "$out/ncu/counters.json"
fi
gate_flags=(--device "$device" --cases "$cases")
[[ -n $baseline ]] && gate_flags+=(--baseline "$baseline")
[[ -n $counters ]] && gate_flags+=(--counters "$counters")
step gate "$octavo" gate "${gate_flags[@]}" --json "$out/repro/gate.json"
[[ -n $baseline ]] || skip "gate: performance" "no --baseline"
[[ -n $counters ]] || skip "gate: counters" "nothing was counted"

# Builds of FlashAttention-3 that are not installed as packages (python/octavo/_peers.py).
[[ -n ${OCTAVO_PEERS:-} || ! -d runs/peers ]] || export OCTAVO_PEERS=$PWD/runs/peers

case $device in
  cuda)
    timed=("$octavo" bench --device cuda --iters "${iters:-2000}")
    step bench "${timed[@]}" --json "$out/bench/bench.json"
    step bench_stream "${timed[@]}" --skip-correctness --launch stream --json "$out/bench/stream.json"
    step bench_cold "${timed[@]}" --skip-correctness --l2 cold --json "$out/bench/cold.json"
    step bench_rotating "${timed[@]}" --skip-correctness --buffers 64 --json "$out/bench/rotating.json"
    if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
      # On Hopper, compare the Hopper kernels with every peer, live or recorded, as tools/evidence.sh does.
      against=() family=()
      if "$octavo" devices | grep -q 'sm_90'; then
        against=(--grid bench/grid_sm90.csv --peers "fa3,cudnn,flash" --least 0.97)
        against+=(--recorded bench/peers_h200.csv)
        family=(OCTAVO_KERNELS=sm90)
      fi
      # PyTorch brings its own NVRTC; all steps must use the same compiler.
      nvrtc=$(sed -n 's/^OCTAVO_NVRTC:FILEPATH=//p' "$build/CMakeCache.txt" 2>/dev/null)
      [[ -f $nvrtc ]] && family+=(OCTAVO_NVRTC="$nvrtc")
      step compare env "${family[@]}" "$python" tools/compare_torch.py --library "$build/liboctavo.so" \
        --command "$octavo" --json "$out/bench/compare.json" "${against[@]}" ${commit:+--commit "$commit"}
      if PYTHONPATH=$build/python "$python" -c 'import octavo' 2>/dev/null; then
        step python_bench env PYTHONPATH="$build/python" "$python" -m octavo.bench \
          --backend flash,cudnn,mem_efficient,flash_attn,xformers,cutlass,fa3 --iters 30 --json "$out/bench/python.json"
      else
        skip python_bench "the Python module was not built"
      fi
    else
      skip compare "no PyTorch that sees the GPU"
    fi
    ;;
  cpu)
    step bench "$octavo" bench --device cpu --iters "${iters:-10}" --warmup 2 --no-three-loop \
      --json "$out/bench/bench.json"
    skip compare "no GPU"
    skip "GPU kernels" "no GPU: they were not run"
    ;;
  *)
    skip bench "the emulator's time is not a kernel's"
    skip compare "no GPU"
    ;;
esac
[[ -n $counters ]] || skip counters "$([[ $device == cuda ]] && echo "CUPTI cannot count here" || echo "no GPU")"

# --- report, manifest, bundle
before=()
gpu=$(nvidia-smi -i 0 --query-gpu=name --format=csv,noheader 2>/dev/null | tr '[:upper:] ' '[:lower:]-')
[[ -n $gpu && -d evidence/$gpu ]] && before=(--before "evidence/$gpu")
step report "$python" tools/report.py --folder "$out" "${before[@]}" --out "$out/report"
bundle=repro_bundle_${commit:0:7}_$(date -u +%Y%m%dT%H%M%SZ)
# No steps after this point: they would change files whose digests are in the manifest.
if "$python" tools/manifest.py --folder "$out" --command "$octavo" --commit "$commit" &&
  tar -czf "$out/$bundle.tar.gz" --transform "s,^\.,$bundle," -C "$out" \
  ./bench ./ncu ./repro ./manifest.yaml ./report.html ./report.md &&
  "$octavo" evidence verify "$out/$bundle.tar.gz"; then
  printf '\n%s\n' "$out/$bundle.tar.gz"
else
  failed+=(bundle)
fi

if ((${#skipped[@]})); then
  echo "not done:"
  printf '  %s\n' "${skipped[@]}"
fi
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all steps that ran passed, in $SECONDS s"
