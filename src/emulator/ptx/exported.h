// SPDX-License-Identifier: Apache-2.0
// Makes the wrappers of device/ptx visible outside the library, whose other symbols are hidden: the
// kernel of a candidate of `octavo evolve` is a shared object that calls them. The compiler
// includes this file before every other one of the emulator, as a function's first declaration
// decides.
#pragma once

// The pragma is for functions, the attribute for templates, which do not pass the pragma on to
// their instantiations.
#include "device/ptx/target.cuh"
#pragma GCC visibility push(default)
#undef OCTAVO_PTX
#define OCTAVO_PTX __attribute__((visibility("default")))
#include "device/ptx/atomic.cuh"
#include "device/ptx/cluster.cuh"
#include "device/ptx/f64.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/fragment.cuh"
#include "device/ptx/l2_policy.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/mma.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/rounded.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/ptx/wgmma_f8.cuh"
#include "device/ptx/wgmma_s8.cuh"
#include "device/ptx/wgmma_shapes.cuh"
#undef OCTAVO_PTX
#define OCTAVO_PTX
#pragma GCC visibility pop
