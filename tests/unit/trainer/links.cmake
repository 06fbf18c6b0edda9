target_sources(test_trainer PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/support/group.cpp)
target_link_libraries(test_trainer PRIVATE accord_checkpoint accord_weights accord_comm nlohmann_json::nlohmann_json torch_cpu)
