dgxrun_test(NAME topology_plan_test SRCS ${CMAKE_CURRENT_LIST_DIR}/topology_plan_test.cc LIBS dgxrun_binding)
dgxrun_test(NAME topology_read_test SRCS ${CMAKE_CURRENT_LIST_DIR}/topology_read_test.cc LIBS dgxrun_topology)
dgxrun_test(NAME topology_golden_test SRCS ${CMAKE_CURRENT_LIST_DIR}/topology_golden_test.cc LIBS dgxrun_topology)
target_compile_definitions(topology_golden_test PRIVATE
  DGXRUN_SHARED_DEFAULT="${CMAKE_SOURCE_DIR}/../shared" DGXRUN_GOLDEN="${CMAKE_CURRENT_LIST_DIR}/golden/topology")
dgxrun_test(NAME topology_json_test SRCS ${CMAKE_CURRENT_LIST_DIR}/topology_json_test.cc
            LIBS dgxrun_topo_json nlohmann_json::nlohmann_json)
