#!/usr/bin/env bash
# python_env.sh: creates a virtual environment in build-python with everything the Python module and
# its tests need, unless python3 has it already. If it cannot be created (no network, no venv), the
# module is not built, and its tests are listed as not run. If only PyTorch, transformers and JAX
# are unavailable, their tests are.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build-python
needs="import ml_dtypes, nanobind, numpy, pytest"
frameworks="import jax, torch, transformers"
for python in "$environment/bin/python" python3; do
  "$python" -c "$needs; $frameworks" 2>/dev/null && exit 0
done

install() {
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 15 \
    --retries 1 "$@"
}

if ! "$environment/bin/python" -c "$needs" 2>/dev/null; then
  packages=(ml_dtypes nanobind numpy pytest)
  echo "Making $environment: ${packages[*]}"
  if ! python3 -m venv "$environment" || ! install "${packages[@]}"; then
    rm -rf "$environment"
    echo "It could not be made: the Python module is left out, or built for python3."
    exit 0
  fi
fi

# PyTorch 2.10 is the last version whose package for aarch64 is CPU-only: 150 MB. Later packages
# bring CUDA's libraries, as all packages for x86_64 do.
torch="torch>=2.6"
[[ $(uname -m) == aarch64 ]] && torch="torch==2.10.*"
packages=("$torch" "transformers>=5" "jax")
echo "Adding to $environment: ${packages[*]}"
install "${packages[@]}" || echo "They could not be had: their tests will not run."
