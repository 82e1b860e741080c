# wire_proxy: makes an agent or a client and a controller believe that the other is of another release;
# tests/e2e/test_upgrade.py runs jobs through it. Or it only counts what passes (test_operation_counts.py).
add_executable(wire_proxy contract/wire_proxy.cc contract/old_wire.cc contract/wire_log.cc)
target_link_libraries(wire_proxy PRIVATE dgxrun_flags dgxrun_rpc CLI11::CLI11 absl::statusor absl::strings)
set_target_properties(wire_proxy PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(tests wire_proxy)

# The previous wire, as wire_proxy reads it.
set(WIRE_1_0 ${CMAKE_CURRENT_SOURCE_DIR}/contract/wire_1_0)
file(GLOB WIRE_1_0_FILES ${WIRE_1_0}/dgxrun/v1/*.proto)
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/tests/wire_1_0.pb
  COMMAND protobuf::protoc -I ${WIRE_1_0} --include_imports --descriptor_set_out=${CMAKE_BINARY_DIR}/tests/wire_1_0.pb
          dgxrun/v1/agent_link.proto dgxrun/v1/control.proto
  DEPENDS ${WIRE_1_0_FILES})
add_custom_target(wire_1_0 DEPENDS ${CMAKE_BINARY_DIR}/tests/wire_1_0.pb)
add_dependencies(wire_proxy wire_1_0)
