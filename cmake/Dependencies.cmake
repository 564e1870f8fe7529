# SPDX-License-Identifier: Apache-2.0
# Dependencies. Required are a C++20 compiler, threads, fmt and nlohmann-json; the last three are
# internal and appear neither in the public headers nor in the installed package. Components with
# other missing dependencies are left out, and the summary says so.
find_package(Threads REQUIRED)
# Uses the compiled fmt::fmt: fmt-header-only adds 5 s to every file that formats an error, and 19 s
# under the sanitizers.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

find_package(hwy QUIET)
if(hwy_FOUND)
  octavo_say("Highway" "found ${hwy_VERSION}, CPU backend uses SIMD chosen at run time")
else()
  octavo_say("Highway" "not found, CPU backend uses the portable kernels")
endif()

# Boost.Context provides the emulator's fibers. The sanitizers do not support switching stacks.
set(OCTAVO_EMULATOR OFF)
if(OCTAVO_SANITIZE OR OCTAVO_FUZZER)
  octavo_say("Emulator" "left out under sanitizers")
elseif(NOT OCTAVO_EMULATED_KERNELS)
  octavo_say("Emulator" "left out, because OCTAVO_EMULATED_KERNELS is OFF")
else()
  find_package(Boost 1.71 QUIET COMPONENTS context)
  if(Boost_CONTEXT_FOUND)
    set(OCTAVO_EMULATOR ON)
    octavo_say("Boost.Context" "found ${Boost_VERSION_STRING}, emulator built")
  else()
    octavo_say("Boost.Context" "not found, emulator left out")
  endif()
endif()

if(OCTAVO_CLI)
  find_package(CLI11 QUIET)
  if(OCTAVO_SANITIZE)
    octavo_say("Command" "left out under sanitizers, its file readers built")
  elseif(CLI11_FOUND)
    octavo_say("CLI11" "found ${CLI11_VERSION}, command built")
  else()
    octavo_say("CLI11" "not found, command left out")
  endif()
else()
  octavo_say("Command" "left out (OCTAVO_CLI is OFF)")
endif()

# `octavo evolve` opens SQLite when it runs, so that the library has no such dependency; the header is
# for the test of its declarations.
find_path(OCTAVO_SQLITE_INCLUDE sqlite3.h)
mark_as_advanced(OCTAVO_SQLITE_INCLUDE)
if(OCTAVO_SQLITE_INCLUDE)
  octavo_say("SQLite" "found, opened at run time for the ledger of octavo evolve")
else()
  octavo_say("SQLite" "not found (libsqlite3-dev); octavo evolve needs libsqlite3.so.0 when it runs")
endif()

if(OCTAVO_TESTS)
  find_package(GTest QUIET)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(GTest_FOUND)
    octavo_say("GoogleTest" "found ${GTest_VERSION}, tests built")
  else()
    octavo_say("GoogleTest" "not found, tests left out")
  endif()
  if(NOT Python3_Interpreter_FOUND)
    octavo_say("Python" "not found, the tests of the repository left out")
  endif()
else()
  octavo_say("Tests" "left out (OCTAVO_TESTS is OFF)")
endif()

# The Python module uses the Python and nanobind of the virtual environment in build-python, if
# tools/python_env.sh made one. It is not built with sanitizers, whose run time would have to be loaded
# before Python itself.
set(OCTAVO_PYTHON AUTO CACHE STRING "The Python module: ON, OFF, or AUTO (where nanobind is found)")
set(octavo_module OFF)
if(OCTAVO_SANITIZE OR OCTAVO_FUZZER OR NOT OCTAVO_PYTHON)
  octavo_say("Python module" "left out")
else()
  set(octavo_environment "${PROJECT_SOURCE_DIR}/build-python/bin/python")
  if(NOT Python_EXECUTABLE AND NOT SKBUILD AND EXISTS "${octavo_environment}")
    set(Python_EXECUTABLE "${octavo_environment}")
  endif()
  find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module)
  if(Python_Interpreter_FOUND AND NOT nanobind_DIR)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_DIR)
  endif()
  if(Python_Development.Module_FOUND)
    find_package(nanobind CONFIG QUIET)
  endif()
  if(nanobind_FOUND)
    set(octavo_module ON)
    octavo_say("Python module" "built for ${Python_EXECUTABLE}, ${Python_VERSION}")
  elseif(OCTAVO_PYTHON STREQUAL "AUTO")
    octavo_say("Python module" "left out, as Python's headers or nanobind were not found")
  else()
    message(FATAL_ERROR "OCTAVO_PYTHON is ON; Python's headers or nanobind were not found.")
  endif()
endif()

# octavo.jax calls the library from XLA's programs. The headers for this come with jaxlib; they need
# not be of the version that will run.
if(octavo_module)
  execute_process(COMMAND "${Python_EXECUTABLE}" -c
                  "import importlib.util as u; print(*u.find_spec('jaxlib').submodule_search_locations)"
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE octavo_jaxlib)
  find_path(OCTAVO_XLA_INCLUDE xla/ffi/api/ffi.h HINTS "${octavo_jaxlib}/include" NO_DEFAULT_PATH
            DOC "Where the headers xla/ffi/api of jaxlib are")
  if(OCTAVO_XLA_INCLUDE)
    octavo_say("XLA's headers" "found, octavo.jax built")
  else()
    octavo_say("XLA's headers" "not found (jaxlib has them), octavo.jax left out")
  endif()
endif()

# NVRTC compiles the kernels; nvcc only compiles the device headers as an additional test.
find_program(OCTAVO_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(OCTAVO_NVCC)
