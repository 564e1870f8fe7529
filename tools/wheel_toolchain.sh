#!/usr/bin/env bash
# wheel_toolchain.sh ARCH FOLDER: prepares FOLDER for building portable wheels for ARCH (x86_64 or
# aarch64) on any Linux machine. FOLDER/toolchain.cmake is then the CMAKE_TOOLCHAIN_FILE of
#
# - a C++ compiler that targets glibc 2.28 and links its C++ library statically: the package ziglang
#   of PyPI, which is clang with the headers and libraries of its targets,
# - fmt and Highway as static libraries, nlohmann-json and CLI11, from the sources that Debian
#   distributes, whose checksums are below.
#
# It needs python3 with venv, cmake, curl and a network. What is there already is kept.
set -euo pipefail

usage="usage: wheel_toolchain.sh x86_64|aarch64 FOLDER"
arch=${1:?$usage}
mkdir -p "${2:?$usage}"
folder=$(cd "$2" && pwd)
case $arch in x86_64 | aarch64) ;; *)
  echo "wheel_toolchain.sh: the architecture is $arch; supported: x86_64, aarch64." >&2
  exit 2
  ;;
esac
glibc=2.28  # of manylinux_2_28
python=${PYTHON:-python3}

if [[ ! -x $folder/venv/bin/python ]]; then
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet "ziglang==0.17.0"
fi
zig=$("$folder/venv/bin/python" -c 'import ziglang; print(ziglang.__path__[0])')/zig

# CMake wants one program for each tool. Zig builds its C++ library once for each kind of optimisation,
# and at -O1 it would check undefined behaviour.
mkdir -p "$folder/bin"
compiler() {
  printf '#!/bin/sh\nexec "%s" %s -target %s-linux-gnu.%s -O2 -fno-sanitize=undefined "$@"\n' \
    "$zig" "$2" "$arch" "$glibc" >"$folder/bin/$1"
}
archiver() { printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$1" >"$folder/bin/$1"; }
compiler cc cc
compiler c++ c++
archiver ar
archiver ranlib
chmod +x "$folder"/bin/*

# The host's own libraries are not searched: the wheel must not depend on them.
cat >"$folder/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $arch)
set(CMAKE_C_COMPILER "$folder/bin/cc")
set(CMAKE_CXX_COMPILER "$folder/bin/c++")
set(CMAKE_AR "$folder/bin/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "$folder/bin/ranlib" CACHE FILEPATH "")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s")
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
list(APPEND CMAKE_PREFIX_PATH "$folder/prefix")
END

# unpack PATH SHA256: downloads PATH of Debian's pool and unpacks it into $source.
unpack() {
  local file=$folder/sources/${1##*/}
  source=$folder/sources/$2
  mkdir -p "$folder/sources"
  [[ -f $file ]] || curl --fail --silent --show-error --location --retry 3 --output "$file.part" \
    "https://deb.debian.org/debian/pool/main/$1"
  [[ -f $file ]] || mv "$file.part" "$file"
  echo "$2  $file" | sha256sum --check --quiet
  mkdir -p "$source"
  tar -xf "$file" -C "$source" --strip-components=1
}

# install PATH SHA256 [CMake arguments]: builds the package and installs it into FOLDER/prefix.
install() {
  local source build
  [[ -f $folder/prefix/$2 ]] && return
  unpack "$1" "$2"
  build=$source/build
  shift 2
  cmake -S "$source" -B "$build" -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_PREFIX="$folder/prefix" -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF "$@"
  cmake --build "$build" --parallel "${JOBS:-$(nproc)}"
  cmake --install "$build"
  touch "$folder/prefix/${source##*/}"
}

install f/fmtlib/fmtlib_10.1.1+ds1.orig.tar.gz \
  7000f214d2628f04174822f8048c573f1608194408d7931121595a03f1c18a17 \
  -DFMT_DOC=OFF -DFMT_TEST=OFF
install h/highway/highway_1.2.0.orig.tar.gz \
  7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343 \
  -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
install n/nlohmann-json3/nlohmann-json3_3.11.3.orig.tar.gz \
  0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406 -DJSON_BuildTests=OFF
install c/cli11/cli11_2.4.1+ds.orig.tar.xz \
  0b8fbf2398875f15f30a675c7f412123a2aaa38df2863e991de72004fd5f1292 \
  -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF
echo "$folder/toolchain.cmake is ready: $arch, glibc $glibc"
