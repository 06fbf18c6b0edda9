target_link_libraries(test_model PRIVATE accord_checkpoint) # reference values and configs
