# The symbol test needs a program that holds libtorch as well. Its headers are left out: they contain a gloo.
target_link_libraries(test_comm PRIVATE $<LINK_ONLY:torch_cpu> ${CMAKE_DL_LIBS})
target_link_options(test_comm PRIVATE LINKER:--no-as-needed)
