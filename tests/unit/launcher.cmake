# launcher/: pure parts, the process seam, and real shims with real ranks.
add_executable(launcher_rank unit/launcher_rank.cc)
target_link_libraries(launcher_rank PRIVATE dgxrun_flags)
set_target_properties(launcher_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

dgxrun_test(NAME launcher_gang_test SRCS unit/launcher_gang_test.cc LIBS dgxrun_gang)
dgxrun_test(NAME launcher_plan_test SRCS unit/launcher_plan_test.cc LIBS dgxrun_launcher)
dgxrun_test(NAME launcher_base_test SRCS unit/launcher_base_test.cc LIBS dgxrun_launcher)
dgxrun_test(NAME launcher_sys_test SRCS unit/launcher_sys_test.cc unit/launcher_deny.cc LIBS dgxrun_launcher)

set(LAUNCHER_HARNESS unit/launcher_harness.cc unit/launcher_deny.cc)
dgxrun_test(NAME launcher_shim_test SRCS unit/launcher_shim_test.cc ${LAUNCHER_HARNESS} LIBS dgxrun_launcher)
dgxrun_test(NAME launcher_death_test SRCS unit/launcher_death_test.cc ${LAUNCHER_HARNESS} LIBS dgxrun_launcher)
foreach(test launcher_shim_test launcher_death_test)
  target_compile_definitions(${test} PRIVATE DGXRUN_SHIM_BINARY="$<TARGET_FILE:dgxrun-shim>"
                                             DGXRUN_RANK_BINARY="$<TARGET_FILE:launcher_rank>")
  add_dependencies(${test} dgxrun-shim launcher_rank)
  # The same tests on a kernel without pidfd_open, clone3 and close_range.
  add_test(NAME ${test}_old_kernel COMMAND ${test})
  set_tests_properties(${test}_old_kernel PROPERTIES TIMEOUT 120 ENVIRONMENT DGXRUN_TEST_DENY=1)
endforeach()
add_test(NAME launcher_sys_test_old_kernel COMMAND launcher_sys_test)
set_tests_properties(launcher_sys_test_old_kernel PROPERTIES TIMEOUT 120 ENVIRONMENT DGXRUN_TEST_DENY=1)
