# The simulator: the real cores of controller, agent and shim on one fake clock. Optimised also in debug
# builds, since its worth is in the number of seeds.
file(GLOB SIM_SRCS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/sim/*.cc)
add_executable(sim ${SIM_SRCS})
target_link_libraries(sim PRIVATE dgxrun_flags dgxrun_core dgxrun_agent_core dgxrun_gang)
set_target_properties(sim PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_test(NAME sim_seeds COMMAND sim --seed 1 --seeds 300)
foreach(mutation no-fence-wait answer-first deaf)
  add_test(NAME sim_mutation_${mutation} COMMAND sim --seed 1 --seeds 100 --mutate ${mutation})
endforeach()
set_tests_properties(sim_seeds sim_mutation_no-fence-wait sim_mutation_answer-first sim_mutation_deaf
                     PROPERTIES TIMEOUT 300)
