#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# profile_ncu.sh: profiles a case with Nsight Compute, with the metrics of `octavo counters`.
#
#   tools/profile_ncu.sh PRESET ITERS [--config C] [--causal MASK] [--dtype TYPE] [--out FOLDER]
#
# PRESET is a name (mission, small, long, wide, stress) or a shape B,H,S,D; ITERS kernels are
# profiled, after a warm-up. FOLDER (artifacts/ncu) gets NAME.counters.json, the counts of CUPTI in
# process; NAME.ncu-rep, the report of ncu; and NAME.csv, the same as a table. Clocks and caches are
# not controlled, as in process.
set -euo pipefail
usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

(($# >= 2)) || usage
preset=$1 iters=$2 out=artifacts/ncu
shift 2
[[ $iters =~ ^[1-9][0-9]*$ ]] || {
  echo "profile_ncu.sh: ITERS is '$iters'; supported: 1 or more." >&2
  exit 2
}
case_flags=(--preset "$preset")
[[ $preset != *,* ]] || case_flags=(--shape "$preset")
name=${preset//,/x}
while (($#)); do
  (($# > 1)) || usage
  case $1 in
    --out) out=$2 ;;
    --config) case_flags+=("$1" "$2") ;;
    --causal | --dtype)
      case_flags+=("$1" "$2")
      name+=_$2
      ;;
    *) usage ;;
  esac
  shift 2
done
octavo=${OCTAVO:-$(dirname "$0")/../build/octavo} python=${PYTHON:-python3}
for tool in ncu "$python" "$octavo"; do
  command -v "$tool" >/dev/null || {
    echo "profile_ncu.sh: $tool is missing" >&2
    exit 2
  }
done
mkdir -p "$out"
base=$out/$name

"$octavo" counters --device cuda "${case_flags[@]}" --json "$base.counters.json" >/dev/null
metrics=$("$python" - "$base.counters.json" <<'PYTHON'
import json, sys
names = json.load(open(sys.argv[1]))["names"]
print(",".join(n["metric"] for n in names if n["metric"]))
PYTHON
)
# The first launch loads the kernel; --kill ends the program when enough kernels are profiled.
ncu --force-overwrite --export "$base" --metrics "$metrics" --kernel-name regex:forward \
  --launch-skip 1 --launch-count "$iters" --clock-control none --cache-control none --kill yes \
  "$octavo" bench --device cuda --skip-correctness --iters 20 "${case_flags[@]}" >"$base.log" 2>&1 ||
  [[ -s $base.ncu-rep ]] || {
    tail -n 5 "$base.log" >&2
    exit 1
  }
ncu --import "$base.ncu-rep" --csv --page raw --print-units base >"$base.csv"
echo "$base.ncu-rep $base.csv $base.counters.json"
