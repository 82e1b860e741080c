add_executable(ckpt_judge ${CMAKE_CURRENT_LIST_DIR}/../tools/ckpt_judge.cc)
target_link_libraries(ckpt_judge PRIVATE dgxrun_flags dgxrun_ckpt nlohmann_json::nlohmann_json)
