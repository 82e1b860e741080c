dgxrun_test(NAME controller_log_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/controller_log_test.cc
            LIBS dgxrun_controller SQLite::SQLite3)
dgxrun_test(NAME controller_wal_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/controller_wal_test.cc
            LIBS dgxrun_controller)
dgxrun_test(NAME controller_config_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/controller_config_test.cc LIBS dgxrun_base)
target_compile_definitions(controller_config_test PRIVATE DGXRUN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
dgxrun_test(NAME controller_engine_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/controller_engine_test.cc
            LIBS dgxrun_controller)
dgxrun_test(NAME controller_service_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/controller_service_test.cc
            LIBS dgxrun_controller)
dgxrun_test(NAME controller_in_process_test SRCS ${CMAKE_SOURCE_DIR}/tests/unit/controller_in_process_test.cc
            LIBS dgxrun_controller)
