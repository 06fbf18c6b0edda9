target_link_libraries(test_model PRIVATE accord_checkpoint) # reference values and configs
target_sources(test_model PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/support/group.cpp)
target_link_libraries(test_model PRIVATE accord_comm) # expert groups
