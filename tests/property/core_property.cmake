dgxrun_test(NAME core_property_test SRCS property/core_property_test.cc LIBS dgxrun_core)
