# XML of a machine and the override file: to a topology, and on to a plan.
foreach(part xml override)
  dgxrun_fuzz(NAME topology_${part}_fuzz SRCS ${CMAKE_CURRENT_LIST_DIR}/topology_${part}_fuzz.cc LIBS dgxrun_topology)
endforeach()
