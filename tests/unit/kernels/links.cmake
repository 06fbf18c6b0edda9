target_link_libraries(test_kernels PRIVATE accord_checkpoint) # reference values are safetensors files
if(NOT ACCORD_CUDA_EMULATED) # where the kernels have it
  target_sources(test_kernels PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/support/fake_cublaslt.cpp)
endif()
