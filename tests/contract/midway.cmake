# For tests/e2e/test_killed_midway.py: a preloaded library that ends a controller at a chosen step.
add_library(die_at SHARED e2e/midway/die_at.cc)
target_link_libraries(die_at PRIVATE dgxrun_flags ${CMAKE_DL_LIBS})
set_target_properties(die_at PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(tests die_at)
