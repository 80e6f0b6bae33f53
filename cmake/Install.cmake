# cmake --install: the headers, the CMake package that find_package(tutti) finds, the file of pkg-config, the licence and the
# notice. cpack -G DEB: the same as a package of Debian.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(TARGETS tutti EXPORT tuttiTargets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILE_SET separate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TUTTI_BUILD_TOOLS)
  # The headers need no build, so an installation may come before any: the tools are then built for it.
  foreach(tool tutti_run tutti_sweep tutti_dashboard)
    if(TARGET ${tool}) # tutti_dashboard is where cpp-httplib was found
      install(CODE "
if(NOT EXISTS \"$<TARGET_FILE:${tool}>\")
  execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${PROJECT_BINARY_DIR}\" --config \"$<CONFIG>\" --target ${tool}
    COMMAND_ERROR_IS_FATAL ANY)
endif()")
      install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
  install(TARGETS tutti-checkpoint RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL) # where it was built
endif()
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES cmake/tutti_export.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tutti)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  cmake/tuttiConfig.cmake
  cmake/TuttiProgram.cmake
  cmake/TuttiRecipe.cmake
  cmake/TuttiSeparate.cmake
  cmake/TuttiTorch.cmake
  cmake/TuttiDependencies.cmake
  ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  DESTINATION ${package_dir})
include(cmake/packages/PkgConfig.cmake)
if(PROJECT_IS_TOP_LEVEL)
  include(cmake/packages/Deb.cmake)
endif()
