dgxrun_test(NAME ckpt_parts_test SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_parts_test.cc LIBS dgxrun_ckpt)
dgxrun_test(NAME ckpt_judge_test SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_judge_test.cc LIBS dgxrun_ckpt)
target_compile_definitions(ckpt_judge_test PRIVATE DGXRUN_SHARED_DEFAULT="${CMAKE_SOURCE_DIR}/../shared")
dgxrun_test(NAME ckpt_odd_test SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_odd_test.cc LIBS dgxrun_ckpt)
