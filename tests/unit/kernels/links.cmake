target_link_libraries(test_kernels PRIVATE accord_checkpoint) # reference values are safetensors files
