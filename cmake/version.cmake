# The program, and the version it reports.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE ACCORD_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT ACCORD_COMMIT)
  set(ACCORD_COMMIT unknown)
endif()
function(accord_program)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/version.hpp.in ${CMAKE_BINARY_DIR}/generated/accord_version.hpp)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.cpp)
  add_executable(accord ${sources})
  target_include_directories(accord PRIVATE ${CMAKE_BINARY_DIR}/generated)
  target_link_libraries(accord PRIVATE accord_flags accord_rpc CLI11::CLI11 nlohmann_json::nlohmann_json)
endfunction()
