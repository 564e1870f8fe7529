#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh BUILD SOURCE CC CXX: installs the build into a prefix, moves the prefix, builds
# the examples against it with find_package and with pkg-config, runs them, and checks their output.
set -euo pipefail
build=$1 source=$2 cc=$3 cxx=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"  # the installation must not contain its original path
prefix=$work/moved
if grep -rIl -e "$work/first" -e "$source" "$prefix"; then fail "the files above name the build"; fi

# The output of the examples; the C one's last line is the library's error sentence about 3 key
# heads.
expect() {
  local how=$1 folder=$2 said
  said=$("$folder/attention_cc") || fail "$how: the C++ example exits with $?"
  [[ $said == 255.5 ]] || fail "$how: the C++ example prints $said"
  said=$("$folder/decode_cc") || fail "$how: the decoding example exits with $?"
  [[ $said == "59.5 59.5" ]] || fail "$how: the decoding example prints $said"
  said=$("$folder/attention_c") || fail "$how: the C example exits with $?"
  [[ $said == "63.5 4.8520"$'\n'*3* ]] || fail "$how: the C example prints $said"
  echo "$how: $said"
}

cmake -S "$source/examples" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" || fail "$(cat "$work/log")"
cmake --build "$work/cmake" >"$work/log" || fail "$(cat "$work/log")"
expect find_package "$work/cmake"

# Before 1.0 another minor version has another API: requesting it must fail.
sed 's/octavo 0.2 REQUIRED/octavo 0.9 REQUIRED/' "$source/examples/CMakeLists.txt" \
  >"$work/CMakeLists.txt"
cp "$source"/examples/attention.* "$source/examples/decode.cc" "$work"
if cmake -S "$work" -B "$work/newer" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1; then
  fail "find_package(octavo 0.9) is served by this version"
fi

if ! command -v pkg-config >/dev/null; then
  echo "pkg-config is not here: that half is not run"
  exit 77
fi
pc=$(dirname "$(find "$prefix" -name octavo.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs octavo)
mkdir "$work/pkgconfig"
# shellcheck disable=SC2086 # flags are words
"$cxx" -std=c++20 "$source/examples/attention.cc" $flags -o "$work/pkgconfig/attention_cc"
# shellcheck disable=SC2086
"$cxx" -std=c++20 "$source/examples/decode.cc" $flags -o "$work/pkgconfig/decode_cc"
# shellcheck disable=SC2086
"$cc" -std=c11 "$source/examples/attention.c" $flags -o "$work/pkgconfig/attention_c"
LD_LIBRARY_PATH=$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir octavo)
export LD_LIBRARY_PATH
expect pkg-config "$work/pkgconfig"
unset LD_LIBRARY_PATH

# The command finds the library next to it.
if [[ -x $build/octavo ]]; then
  "$prefix/bin/octavo" devices >/dev/null || fail "the installed command does not run"
fi
