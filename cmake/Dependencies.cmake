# What Octavo takes from elsewhere. Required: a C++20 compiler, threads, fmt, nlohmann-json (all
# three used inside only: neither the library's headers nor its package mention them). Everything
# else is left out where it is missing, and the summary says so.
find_package(Threads REQUIRED)
# The compiled fmt::fmt, not fmt-header-only: that one costs every file that words an error 5 s, and
# 19 s under the sanitizers.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

find_package(hwy QUIET)
if(hwy_FOUND)
  octavo_say("Highway" "found ${hwy_VERSION}, CPU backend uses SIMD chosen at run time")
else()
  octavo_say("Highway" "not found, CPU backend uses the portable kernels")
endif()

# Fibers for the emulator. The sanitizers do not follow a stack that is switched.
set(OCTAVO_EMULATOR OFF)
if(OCTAVO_SANITIZE OR OCTAVO_FUZZER)
  octavo_say("Emulator" "left out under sanitizers")
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
  if(CLI11_FOUND)
    octavo_say("CLI11" "found ${CLI11_VERSION}, command built")
  elseif(CMAKE_DISABLE_FIND_PACKAGE_CLI11)
    octavo_say("Command" "left out, its file readers built (CMAKE_DISABLE_FIND_PACKAGE_CLI11)")
  else()
    octavo_say("CLI11" "not found, command left out")
  endif()
else()
  octavo_say("Command" "left out (OCTAVO_CLI is OFF)")
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
    octavo_say("Python" "not found, the tests of the house's zones left out")
  endif()
else()
  octavo_say("Tests" "left out (OCTAVO_TESTS is OFF)")
endif()

# Kernels are compiled by NVRTC; nvcc only compiles the device headers once more, as a test.
find_program(OCTAVO_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(OCTAVO_NVCC)
