set(CLI_TESTS ${CMAKE_CURRENT_LIST_DIR})
dgxrun_test(NAME cli_base_test
  SRCS ${CLI_TESTS}/cli_command_line_test.cc ${CLI_TESTS}/cli_launch_command_test.cc ${CLI_TESTS}/cli_render_test.cc
       ${CLI_TESTS}/cli_line_assembler_test.cc ${CLI_TESTS}/cli_cluster_test.cc ${CLI_TESTS}/cli_console_test.cc
       ${CLI_TESTS}/cli_process_test.cc
  LIBS dgxrun_cli_base OpenSSL::Crypto nlohmann_json::nlohmann_json)
dgxrun_test(NAME cli_peers_test SRCS ${CLI_TESTS}/cli_peers_test.cc LIBS dgxrun_cli_base OpenSSL::Crypto)
