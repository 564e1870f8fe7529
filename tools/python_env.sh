#!/usr/bin/env bash
# python_env.sh: a virtual environment in build-python with what the Python module and its tests
# need, unless python3 has that itself. Where it cannot be made (no network, no venv) the module is
# left out of the build, and its tests are among those that did not run.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build-python
needs="import ml_dtypes, nanobind, numpy, pytest"
for python in "$environment/bin/python" python3; do
  "$python" -c "$needs" 2>/dev/null && exit 0
done

packages=(ml_dtypes nanobind numpy pytest)
echo "Making $environment: ${packages[*]}"
if ! python3 -m venv "$environment" ||
  ! "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 15 \
    --retries 1 "${packages[@]}"; then
  rm -rf "$environment"
  echo "It could not be made: the Python module is left out."
fi
