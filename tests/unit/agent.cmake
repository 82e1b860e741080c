dgxrun_test(NAME agent_core_test SRCS ${CMAKE_CURRENT_LIST_DIR}/agent_core_test.cc LIBS dgxrun_agent_core)
