# The trainer over a small checkpoint is the trainer room's test fixture.
target_sources(test_controller PRIVATE unit/trainer/fixture.cpp)
target_link_libraries(test_controller PRIVATE nlohmann_json::nlohmann_json)
