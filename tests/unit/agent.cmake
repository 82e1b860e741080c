dgxrun_test(NAME agent_core_test SRCS ${CMAKE_CURRENT_LIST_DIR}/agent_core_test.cc LIBS dgxrun_agent_core)
dgxrun_test(NAME agent_witness_test SRCS ${CMAKE_CURRENT_LIST_DIR}/agent_witness_test.cc LIBS dgxrun_agent_core)
dgxrun_test(NAME agent_parts_test
  SRCS ${CMAKE_CURRENT_LIST_DIR}/agent_parts_test.cc ${CMAKE_CURRENT_LIST_DIR}/deny_at_start.cc
       ${CMAKE_CURRENT_LIST_DIR}/launcher_deny.cc
  LIBS dgxrun_agent_parts)
add_test(NAME agent_parts_test_old_kernel COMMAND agent_parts_test)
set_tests_properties(agent_parts_test_old_kernel PROPERTIES TIMEOUT 120 ENVIRONMENT DGXRUN_TEST_DENY=1)
dgxrun_test(NAME agent_ckpt_test SRCS ${CMAKE_CURRENT_LIST_DIR}/agent_ckpt_test.cc LIBS dgxrun_agent_parts)
# Real shims and ranks under a scripted controller.
dgxrun_test(NAME agent_live_test SRCS ${CMAKE_CURRENT_LIST_DIR}/agent_live_test.cc LIBS dgxrun_agent)
target_compile_definitions(agent_live_test PRIVATE SHIM_BINARY="$<TARGET_FILE:dgxrun-shim>")
add_dependencies(agent_live_test dgxrun-shim)
