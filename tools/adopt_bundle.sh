#!/usr/bin/env bash
# adopt_bundle.sh: verifies a bundle of ./repro.sh, copies its reports to evidence/<the bundle's
# GPU> and regenerates the tables. Run it before copying the reports of tools/evidence.sh for the
# same commit there: the latter's suite `twelve` has a thousand runs of each case instead of two.
#
#   tools/adopt_bundle.sh BUNDLE [--command build/octavo] [--root FOLDER]
set -euo pipefail
usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}

(($#)) || usage
bundle=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
command=build/octavo root=$PWD python=${PYTHON:-python3}
while (($#)); do
  (($# > 1)) || usage
  case $1 in
    --command) command=$2 ;;
    --root) root=$2 ;;
    *) usage ;;
  esac
  shift 2
done

"$command" evidence verify "$bundle"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -xzf "$bundle" --strip-components=1 -C "$folder"
gpu=$(sed -n 's/^gpu: "\(.*\)"$/\1/p' "$folder/manifest.yaml")
[[ -n $gpu ]] || {
  echo "adopt_bundle.sh: the bundle is of a machine without a GPU" >&2
  exit 1
}
into=$root/evidence/$(tr '[:upper:] ' '[:lower:]-' <<<"$gpu")
mkdir -p "$into"
family=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["family"] or "all")' \
  "$folder/bench/compare.json")
# take FILE NAME: copies the report if the step was done.
take() {
  [[ ! -f $folder/$1 ]] || cp "$folder/$1" "$into/$2"
}
take bench/compare.json "${family}_compare.json"
take bench/bench.json "${family}_bench.json"
for way in stream cold rotating; do take "bench/$way.json" "${family}_bench_$way.json"; done
take bench/python.json "${family}_python.json"
take bench/twelve.json "${family}_twelve.json"
take ncu/counters.json "${family}_counters.json"
take ncu/counters_causal.json "${family}_counters_causal.json"
take ncu/mission.csv "${family}_ncu_mission.csv"
take repro/gate.json "${family}_gate.json"
take repro/steps.csv repro_steps.csv
take manifest.yaml manifest.yaml
"$python" tools/evidence_tables.py --folder "$into"
echo "$into"
