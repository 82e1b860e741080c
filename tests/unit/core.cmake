dgxrun_test(NAME core_job_test SRCS unit/core_job_test.cc LIBS dgxrun_core)
dgxrun_test(NAME core_node_test SRCS unit/core_node_test.cc LIBS dgxrun_core)
dgxrun_test(NAME core_verdict_test SRCS unit/core_verdict_test.cc LIBS dgxrun_core)
dgxrun_test(NAME core_plan_test SRCS unit/core_plan_test.cc LIBS dgxrun_core)
