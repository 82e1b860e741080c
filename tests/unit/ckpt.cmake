add_executable(ckpt_judge ${CMAKE_CURRENT_LIST_DIR}/../tools/ckpt_judge.cc)
target_link_libraries(ckpt_judge PRIVATE dgxrun_flags dgxrun_ckpt nlohmann_json::nlohmann_json)

dgxrun_test(NAME ckpt_parts_test SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_parts_test.cc LIBS dgxrun_ckpt)
dgxrun_test(NAME ckpt_judge_test SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_judge_test.cc LIBS dgxrun_ckpt)
target_compile_definitions(ckpt_judge_test PRIVATE DGXRUN_SHARED_DEFAULT="${CMAKE_SOURCE_DIR}/../shared")
dgxrun_test(NAME ckpt_odd_test SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_odd_test.cc LIBS dgxrun_ckpt)
