#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sources.sh: lists every C and C++ file of the repository, one per line (tracked or not, but not
# ignored ones).
set -euo pipefail
cd "$(dirname "$0")/.."
find include src cli python tests tools examples bench -type f \
  \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) \
  2>/dev/null | sort
