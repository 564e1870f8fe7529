#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel_toolchain.sh ARCH FOLDER: prepares FOLDER for building portable wheels for ARCH (x86_64 or
# aarch64) on any Linux machine. FOLDER/toolchain.cmake is then the CMAKE_TOOLCHAIN_FILE of
#
# - a C++ compiler that targets glibc 2.28 and links its C++ library statically: the package ziglang
#   of PyPI, which is clang with the headers and libraries of its targets,
# - fmt and Highway as static libraries, nlohmann-json and CLI11, from the sources of Debian's
#   packages.
#
# FOLDER can be moved, e.g. into a container. The script needs python3 with venv, cmake, apt-get and a
# network. What is there already is kept.
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

# CMake wants one program for each tool. Optimisation and debugging are chosen here because Zig builds
# its C++ library once for each choice, and would check undefined behaviour without optimisation.
mkdir -p "$folder/bin"
compiler() {
  printf '#!/bin/sh\nexec "${0%%/*}/../%s" %s -target %s-linux-gnu.%s -O2 -g0 -s "$@"\n' \
    "${zig#"$folder"/}" "$2" "$arch" "$glibc" >"$folder/bin/$1"
}
archiver() {
  printf '#!/bin/sh\nexec "${0%%/*}/../%s" %s "$@"\n' "${zig#"$folder"/}" "$1" >"$folder/bin/$1"
}
compiler cc cc
compiler c++ c++
archiver ar
archiver ranlib
chmod +x "$folder"/bin/*

# The host's own libraries are not searched: the wheel must not depend on them.
cat >"$folder/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $arch)
set(CMAKE_C_COMPILER "\${CMAKE_CURRENT_LIST_DIR}/bin/cc")
set(CMAKE_CXX_COMPILER "\${CMAKE_CURRENT_LIST_DIR}/bin/c++")
set(CMAKE_AR "\${CMAKE_CURRENT_LIST_DIR}/bin/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "\${CMAKE_CURRENT_LIST_DIR}/bin/ranlib" CACHE FILEPATH "")
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
list(APPEND CMAKE_PREFIX_PATH "\${CMAKE_CURRENT_LIST_DIR}/prefix")
END

# sources PACKAGE: asks apt-get for the source of the Debian package and unpacks it into $source.
# apt-get finds it where this machine gets its packages, and checks Debian's signature.
apt=$folder/apt
sources() {
  local options=(-qq -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$apt/parts"
    -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache")
  if [[ ! -d $apt/parts ]]; then
    mkdir -p "$apt"/{parts,lists/partial,cache/archives/partial}
    local list
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
      [[ -f $list ]] || continue
      sed -E 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$list" >"$apt/parts/${list##*/}"
    done
    apt-get "${options[@]}" update
  fi
  source=$folder/sources/$1
  mkdir -p "$source"
  (cd "$source" && apt-get "${options[@]}" source --download-only "$1")
  tar -xf "$source"/*.orig.tar.* -C "$source" --strip-components=1
}

# install PACKAGE [CMake arguments]: builds the package and installs it into FOLDER/prefix.
install() {
  local source package=$1
  [[ -f $folder/prefix/$package ]] && return
  sources "$package"
  shift
  cmake -S "$source" -B "$source/build" -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_PREFIX="$folder/prefix" -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF "$@"
  cmake --build "$source/build" --parallel "${JOBS:-$(nproc)}"
  cmake --install "$source/build"
  touch "$folder/prefix/$package"
}

install fmtlib -DFMT_DOC=OFF -DFMT_TEST=OFF
install highway -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
# Highway 1.0 installs no CMake package.
package=$folder/prefix/lib/cmake/hwy/hwy-config.cmake
if [[ ! -f $package ]]; then
  mkdir -p "${package%/*}"
  cat >"$package" <<END
set(hwy_VERSION $(sed -n 's/^Version: //p' "$folder/prefix/lib/pkgconfig/libhwy.pc"))
add_library(hwy::hwy STATIC IMPORTED)
set_target_properties(hwy::hwy PROPERTIES
  IMPORTED_LOCATION "\${CMAKE_CURRENT_LIST_DIR}/../../libhwy.a"
  INTERFACE_COMPILE_DEFINITIONS HWY_STATIC_DEFINE
  INTERFACE_INCLUDE_DIRECTORIES "\${CMAKE_CURRENT_LIST_DIR}/../../../include")
END
fi
install nlohmann-json3 -DJSON_BuildTests=OFF
install cli11 -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF
echo "$folder/toolchain.cmake is ready: $arch, glibc $glibc"
