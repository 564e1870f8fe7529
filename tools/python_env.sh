#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# python_env.sh STAGE: creates a virtual environment in build-python, unless python3 has everything
# already. The stage `module` installs what building the Python module needs, XLA's headers (in
# jaxlib) included, and `frameworks`, after it, what only tests need: PyTorch, transformers and JAX,
# which are large, and matplotlib. If the environment cannot
# be created (no network, no venv), the module is not built, and its tests are listed as not run. If
# only the frameworks are unavailable, their tests are.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=${1:?usage: python_env.sh module|frameworks}
case $stage in module | frameworks) ;; *)
  echo "python_env.sh: stage is $stage; supported: module, frameworks." >&2
  exit 2
  ;;
esac
environment=build-python
needs="import ml_dtypes, nanobind, numpy, pytest"
frameworks="import jax, matplotlib, torch, transformers"
for python in "$environment/bin/python" python3; do
  "$python" -c "$needs; $frameworks" 2>/dev/null && exit 0
done

# Python compiles a module when it is first imported; pip would compile all of them.
install() {
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    --timeout 15 --retries 1 "$@"
}

if [[ $stage == module ]]; then
  if ! "$environment/bin/python" -c "$needs" 2>/dev/null; then
    packages=(ml_dtypes nanobind numpy pytest)
    echo "Making $environment: ${packages[*]}"
    if ! python3 -m venv "$environment" || ! install "${packages[@]}"; then
      rm -rf "$environment"
      echo "It could not be made: the Python module is left out, or built for python3."
      exit 0
    fi
  fi
  "$environment/bin/python" -c "import jaxlib" 2>/dev/null || install jaxlib ||
    echo "jaxlib could not be had: octavo.jax is left out."
  exit 0
fi
[[ -x $environment/bin/python ]] || exit 0

# PyTorch 2.10 is the last version whose package for aarch64 is CPU-only: 150 MB. Later packages
# bring CUDA's libraries, as all packages for x86_64 do.
torch="torch>=2.6"
[[ $(uname -m) == aarch64 ]] && torch="torch==2.10.*"
packages=("$torch" "transformers>=5" "jax" "matplotlib>=3.8")
echo "Adding to $environment: ${packages[*]}"
install "${packages[@]}" || echo "They could not be had: their tests will not run."
