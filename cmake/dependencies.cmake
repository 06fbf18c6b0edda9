# Every outside library, found once. Each has one owner room, which links it PRIVATE.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(openssl REQUIRED IMPORTED_TARGET libcrypto)

if(TARGET yaml-cpp::yaml-cpp)
  set(ACCORD_YAML_CPP yaml-cpp::yaml-cpp)
else()
  set(ACCORD_YAML_CPP yaml-cpp)
endif()

find_library(GLOO_LIBRARY gloo REQUIRED)
add_library(gloo SHARED IMPORTED)
set_target_properties(gloo PROPERTIES IMPORTED_LOCATION ${GLOO_LIBRARY})

# Arrow C++ reads Parquet. scripts/setup unpacks it out of the pyarrow wheel; a build without it refuses
# .parquet files.
set(ACCORD_ARROW_ROOT ${CMAKE_SOURCE_DIR}/.deps/arrow CACHE PATH "Arrow C++ with include/ and lib/")
if(EXISTS ${ACCORD_ARROW_ROOT}/lib/libparquet.so)
  add_library(arrow INTERFACE)
  target_include_directories(arrow SYSTEM INTERFACE ${ACCORD_ARROW_ROOT}/include)
  target_link_libraries(arrow INTERFACE ${ACCORD_ARROW_ROOT}/lib/libparquet.so ${ACCORD_ARROW_ROOT}/lib/libarrow.so)
else()
  message(STATUS "Arrow C++ is not at ${ACCORD_ARROW_ROOT} (scripts/setup): building without Parquet")
endif()

# libtorch: scripts/setup unpacks headers and CPU libraries; its own CMake package wants CUDA.
set(ACCORD_LIBTORCH ${CMAKE_SOURCE_DIR}/.deps/libtorch CACHE PATH "libtorch with include/ and lib/")
if(NOT EXISTS ${ACCORD_LIBTORCH}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "libtorch is not at ${ACCORD_LIBTORCH}: run scripts/setup")
endif()
add_library(c10 SHARED IMPORTED)
set_target_properties(c10 PROPERTIES IMPORTED_LOCATION ${ACCORD_LIBTORCH}/lib/libc10.so)
add_library(torch_cpu SHARED IMPORTED)
set_target_properties(torch_cpu PROPERTIES IMPORTED_LOCATION ${ACCORD_LIBTORCH}/lib/libtorch_cpu.so)
# Searched last: libtorch ships headers of other libraries (fmt, protobuf) that must not shadow the system's.
target_compile_options(torch_cpu INTERFACE
  "SHELL:-idirafter ${ACCORD_LIBTORCH}/include" "SHELL:-idirafter ${ACCORD_LIBTORCH}/include/torch/csrc/api/include")
target_link_libraries(torch_cpu INTERFACE c10)
# libtorch exports a gloo of its own that does not fit Debian's headers. Link options precede all libraries, so
# the real one wins wherever libtorch is linked (tests/unit/comm/symbols_test.cpp asserts it).
target_link_options(torch_cpu INTERFACE -Wl,-rpath-link,${ACCORD_LIBTORCH}/lib
  "LINKER:--push-state,--no-as-needed" ${GLOO_LIBRARY} "LINKER:--pop-state")
