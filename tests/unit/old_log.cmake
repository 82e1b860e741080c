dgxrun_test(NAME old_log_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/old_log_test.cc LIBS dgxrun_controller)
target_compile_definitions(old_log_test PRIVATE DGXRUN_LOGS="${CMAKE_SOURCE_DIR}/tests/logs")
