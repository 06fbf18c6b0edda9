# The symbol test needs a program that holds libtorch as well. Its headers are left out: they contain a gloo.
target_link_libraries(test_comm PRIVATE $<LINK_ONLY:torch_cpu> ${CMAKE_DL_LIBS})
target_link_options(test_comm PRIVATE LINKER:--no-as-needed)
if(NOT ACCORD_CUDA_EMULATED) # where the room has it
  target_sources(test_comm PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/support/fake_nccl.cpp)
endif()
