# The judge of checkpoints: its parsers, and all of it on a tree in memory.
foreach(part zip safetensors pickle text tree)
  dgxrun_fuzz(NAME ckpt_${part}_fuzz SRCS ${CMAKE_CURRENT_LIST_DIR}/ckpt_${part}_fuzz.cc LIBS dgxrun_ckpt
              SEEDS ${CMAKE_CURRENT_LIST_DIR}/corpus/ckpt)
endforeach()
