target_link_libraries(test_rpc PRIVATE accord_proto) # stubs, as another process would use them
