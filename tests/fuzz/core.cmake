set(FUZZ ${CMAKE_CURRENT_LIST_DIR})
dgxrun_fuzz(NAME cluster_file_fuzz SRCS ${FUZZ}/cluster_file_fuzz.cc LIBS dgxrun_base
            SEEDS ${CMAKE_SOURCE_DIR}/configs)
dgxrun_fuzz(NAME command_line_fuzz SRCS ${FUZZ}/command_line_fuzz.cc LIBS dgxrun_cli_base)
dgxrun_fuzz(NAME shim_channel_fuzz SRCS ${FUZZ}/shim_channel_fuzz.cc LIBS dgxrun_launcher)
dgxrun_fuzz(NAME agent_core_fuzz SRCS ${FUZZ}/agent_core_fuzz.cc LIBS dgxrun_agent_core)
dgxrun_fuzz(NAME controller_core_fuzz SRCS ${FUZZ}/controller_core_fuzz.cc LIBS dgxrun_core)
