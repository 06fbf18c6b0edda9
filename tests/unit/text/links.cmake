target_link_libraries(test_text PRIVATE nlohmann_json::nlohmann_json)
# Catch2 v2 cannot skip a case: one that prints this line counts as skipped.
set(ACCORD_TEXT_TEST_PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: ")
