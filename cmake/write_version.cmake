# Run at every build: the commit in the program is the one it was built from. Rewrites the header only when
# something changed. Takes SOURCE_DIR, OUTPUT and what version.hpp.in names.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE ACCORD_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT ACCORD_COMMIT)
  set(ACCORD_COMMIT unknown)
endif()
configure_file(${SOURCE_DIR}/cmake/version.hpp.in ${OUTPUT})
