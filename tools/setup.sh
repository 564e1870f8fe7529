#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup.sh STAGE (demo, test, lint or fuzz): installs the packages that the stage needs and the
# machine lacks. As root with apt-get it installs; otherwise it prints the packages, and fails if a
# required one is missing. If nothing is missing, it does nothing and needs no network.
set -euo pipefail

stage=${1:?usage: setup.sh demo|test|lint|fuzz}
case $stage in demo | test | lint | fuzz) ;; *)
  echo "setup.sh: stage is $stage; supported: demo, test, lint, fuzz." >&2
  exit 2
  ;;
esac
list=$(dirname "$0")/packages.txt

# Looks for the program or header, not for the package: it may have been installed another way.
present() {
  local kind=${1%%:*} what=${1#*:}
  case $kind in
    cmd) command -v "$what" >/dev/null ;;
    header) echo "#include <$what>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    python) python3 -c "import $what" 2>/dev/null ;;
    link)
      echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
        clang++ "$what" -x c++ - -o /dev/null >/dev/null 2>&1
      ;;
    *) echo "packages.txt: probe is $1; supported: cmd:, header:, link:, python:." >&2; exit 2 ;;
  esac
}

# Sets missing_required and missing_optional to the packages that this stage lacks.
survey() {
  missing_required=() missing_optional=()
  local package package_stage need probe
  while read -r package package_stage need probe _; do
    case $package in '' | \#*) continue ;; esac
    [[ $package_stage == demo || $package_stage == "$stage" ]] || continue
    present "$probe" && continue
    if [[ $need == required ]]; then
      missing_required+=("$package")
    else
      missing_optional+=("$package")
    fi
  done <"$list"
}

survey
missing=(${missing_required[@]+"${missing_required[@]}"} ${missing_optional[@]+"${missing_optional[@]}"})
((${#missing[@]} == 0)) && exit 0

if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "Installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  install() { apt-get install -y --no-install-recommends "$@" >/dev/null; }
  apt-get update >/dev/null || echo "The package lists could not be updated."
  # If installing all at once fails, installs one by one: an unknown package name must not block the
  # others.
  install "${missing[@]}" ||
    for package in "${missing[@]}"; do install "$package" || true; done
  survey
else
  echo "Missing here. On Debian or Ubuntu:"
  echo "  sudo apt-get install ${missing[*]}"
fi

if ((${#missing_optional[@]})); then
  echo "Optional and not here, left out: ${missing_optional[*]}"
fi
if ((${#missing_required[@]})); then
  echo "Required and not here: ${missing_required[*]}" >&2
  exit 1
fi
