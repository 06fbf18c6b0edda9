# Compiler flags of every target of ours, on one interface target.
add_library(accord_flags INTERFACE)
target_compile_options(accord_flags INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  # GCC 12 reports overlapping copies inside std::string that cannot happen (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # The contract's arithmetic: nothing contracts on its own, and no fast math (docs/contract.md).
  -ffp-contract=off -fno-fast-math
  # AVX2 and FMA are the x86 baseline; shipped builds never use -march=native.
  -march=x86-64-v3)
target_compile_definitions(accord_flags INTERFACE $<$<CONFIG:Debug,Sanitize>:_GLIBCXX_ASSERTIONS>)
if(ACCORD_SANITIZE)
  target_compile_options(accord_flags INTERFACE -fsanitize=${ACCORD_SANITIZE} -fno-sanitize-recover=all
    # Under sanitizers GCC 12 takes <regex> (in Catch2) for uninitialized (GCC bug 105616).
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(accord_flags INTERFACE -fsanitize=${ACCORD_SANITIZE})
  # Options and suppressions, in every program.
  set(ACCORD_SANITIZER_DIR ${CMAKE_SOURCE_DIR}/tests/sanitizers)
  add_library(accord_sanitizer_options OBJECT ${ACCORD_SANITIZER_DIR}/options.cpp)
  target_compile_definitions(accord_sanitizer_options PRIVATE ACCORD_SUPPRESSIONS="${ACCORD_SANITIZER_DIR}")
  target_sources(accord_flags INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:accord_sanitizer_options>>)
endif()
if(ACCORD_FUZZ)
  target_compile_options(accord_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
