# OCTAVO_SANITIZE=address,undefined or thread, for everything this build compiles and links.
if(OCTAVO_FUZZER)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OCTAVO_FUZZER is ON with ${CMAKE_CXX_COMPILER_ID}; libFuzzer comes with "
                        "clang: configure with -DCMAKE_CXX_COMPILER=clang++.")
  endif()
  # Coverage for the whole library; only the fuzz targets link libFuzzer's main.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
  octavo_say("Fuzzer" "libFuzzer")
endif()

if(OCTAVO_SANITIZE)
  # A finding ends the program: a report that lets a test pass is read by nobody.
  add_compile_options(-fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all)
  # g++ takes twice as long over every file for these four. The address sanitizer sees a null pointer
  # and a step outside an object by itself; the fuzz build, by clang, keeps them all.
  if(OCTAVO_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fno-sanitize=null,vptr,object-size,alignment)
  endif()
  octavo_say("Sanitizers" "${OCTAVO_SANITIZE}")
endif()
