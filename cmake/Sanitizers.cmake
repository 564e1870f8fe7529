# SPDX-License-Identifier: Apache-2.0
# Applies OCTAVO_SANITIZE (address,undefined or thread) to everything this build compiles and links.
if(OCTAVO_FUZZER)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OCTAVO_FUZZER is ON with ${CMAKE_CXX_COMPILER_ID}; libFuzzer comes with "
                        "clang: configure with -DCMAKE_CXX_COMPILER=clang++.")
  endif()
  # Instruments the whole library for coverage; only the fuzz targets link libFuzzer's main.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
  octavo_say("Fuzzer" "libFuzzer")
endif()

if(OCTAVO_SANITIZE)
  # A finding aborts the program; otherwise the test would pass and nobody would read the report.
  add_compile_options(-fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all)
  # These four double the compile time of g++. The address sanitizer detects null pointers and
  # accesses outside of an object by itself. The fuzz build, which uses clang, keeps all four.
  if(OCTAVO_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fno-sanitize=null,vptr,object-size,alignment)
  endif()
  octavo_say("Sanitizers" "${OCTAVO_SANITIZE}")
endif()
