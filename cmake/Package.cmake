# SPDX-License-Identifier: Apache-2.0
# cmake --install installs the shared library, the public headers, the command, and the files for
# find_package(octavo) and pkg-config. The static library is only for the tests.
include(CMakePackageConfigHelpers)

set(octavo_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/octavo")
install(TARGETS octavo EXPORT octavoTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/octavo"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_LICENSES"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")

if(TARGET octavo_cli AND NOT SKBUILD)
  # The command finds the library by a relative path, so the installed tree can be moved.
  file(RELATIVE_PATH octavo_lib_from_bin "${CMAKE_INSTALL_FULL_BINDIR}"
       "${CMAKE_INSTALL_FULL_LIBDIR}")
  set_target_properties(octavo_cli PROPERTIES
                        INSTALL_RPATH "$ORIGIN/${octavo_lib_from_bin}")
  install(TARGETS octavo_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

install(EXPORT octavoTargets NAMESPACE octavo:: DESTINATION "${octavo_cmake_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/octavoConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/octavoConfig.cmake"
                              INSTALL_DESTINATION "${octavo_cmake_dir}")
# Before 1.0 a minor version may change the API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/octavoConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/octavoConfig.cmake"
              "${PROJECT_BINARY_DIR}/octavoConfigVersion.cmake"
        DESTINATION "${octavo_cmake_dir}")

# The prefix is relative to the .pc file, so that an unpacked or moved tree works.
file(RELATIVE_PATH octavo_prefix_from_pc
     "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" octavo_prefix_from_pc "${octavo_prefix_from_pc}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/octavo.pc.in" "${PROJECT_BINARY_DIR}/octavo.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/octavo.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
