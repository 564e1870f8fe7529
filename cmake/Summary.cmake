# SPDX-License-Identifier: Apache-2.0
# Prints which components this build has and which it leaves out, at the end of configure.

# octavo_say(NAME text...) adds one line to the summary.
function(octavo_say name)
  string(JOIN "" text ${ARGN})
  set_property(GLOBAL APPEND PROPERTY OCTAVO_SUMMARY "${name}: ${text}")
endfunction()

function(octavo_print_summary)
  get_property(lines GLOBAL PROPERTY OCTAVO_SUMMARY)
  message(STATUS "Octavo ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
                 "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, "
                 "${CMAKE_SYSTEM_PROCESSOR}")
  foreach(line IN LISTS lines)
    message(STATUS "  ${line}")
  endforeach()
endfunction()
