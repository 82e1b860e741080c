# For tests/e2e/test_old_kernels.py: a preloaded library that hides files of newer kernels.
add_library(hide_files SHARED e2e/old_kernel/hide_files.cc)
target_link_libraries(hide_files PRIVATE dgxrun_flags ${CMAKE_DL_LIBS})
set_target_properties(hide_files PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(tests hide_files)
