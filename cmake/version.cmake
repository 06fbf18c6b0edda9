# The program, and the version it reports.
function(accord_program)
  set(header ${CMAKE_BINARY_DIR}/generated/accord_version.hpp)
  set(cuda ${ACCORD_CUDA})
  if(ACCORD_CUDA_EMULATED)
    set(cuda emulated)
  endif()
  set(build "${CMAKE_BUILD_TYPE}, CUDA ${cuda}, sanitizers '${ACCORD_SANITIZE}', ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  add_custom_target(accord_version_header
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${header}
      -DACCORD_VERSION=${PROJECT_VERSION} "-DACCORD_BUILD=${build}" -P ${CMAKE_SOURCE_DIR}/cmake/write_version.cmake
    BYPRODUCTS ${header} VERBATIM)

  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.cpp)
  accord_pick_sources(sources)
  add_executable(accord ${sources})
  add_dependencies(accord accord_version_header)
  target_include_directories(accord PRIVATE ${CMAKE_BINARY_DIR}/generated)
  # A bundle (scripts/bundle) keeps its libraries in ../lib. As RPATH, not RUNPATH: libraries of libraries are
  # found there too.
  set_target_properties(accord PROPERTIES BUILD_RPATH "\$ORIGIN/../lib")
  target_link_options(accord PRIVATE -Wl,--disable-new-dtags)
  target_link_libraries(accord PRIVATE accord_flags accord_rpc accord_bench CLI11::CLI11 nlohmann_json::nlohmann_json)
endfunction()
