# The simulator: the real cores of controller, agent and shim on one fake clock.
file(GLOB SIM_SRCS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/sim/*.cc)
add_executable(sim ${SIM_SRCS})
target_link_libraries(sim PRIVATE dgxrun_flags dgxrun_core dgxrun_agent_core dgxrun_gang)
set_target_properties(sim PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(tests sim)
# The sanitizers make a seed about ten times slower; they look for other faults than the oracles do.
if(DGXRUN_SANITIZE)
  set(SIM_SEEDS 20)
else()
  set(SIM_SEEDS 150)
endif()
add_test(NAME sim_seeds_1 COMMAND sim --seed 1 --seeds ${SIM_SEEDS})
add_test(NAME sim_seeds_2 COMMAND sim --seed 1001 --seeds ${SIM_SEEDS} --nodes 6 --jobs 8)
# Peers mode: half of the controller's deaths take its log along.
add_test(NAME sim_seeds_peers COMMAND sim --seed 1 --seeds ${SIM_SEEDS} --nodes 3 --peers)
foreach(mutation no-fence-wait answer-first deaf)
  add_test(NAME sim_mutation_${mutation} COMMAND sim --seed 1 --seeds 100 --mutate ${mutation})
endforeach()
set_tests_properties(sim_seeds_1 sim_seeds_2 sim_seeds_peers sim_mutation_no-fence-wait sim_mutation_answer-first sim_mutation_deaf
                     PROPERTIES TIMEOUT 300)
