dgxrun_test(NAME rpc_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/rpc_test.cc LIBS dgxrun_rpc)
