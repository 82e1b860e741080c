# dgxrun_find_grpc(TARGET): an interface library with what a program that uses gRPC links.
#
# pkg-config is asked once. pkg_check_modules asks it eight times, and each answer takes two seconds of a core: gRPC's
# hundred abseil modules name each other over and over.
function(dgxrun_find_grpc target)
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} ${PKG_CONFIG_ARGN} --cflags --libs grpc++
                  OUTPUT_VARIABLE words OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "pkg-config does not know grpc++: deploy/setup.sh installs it")
  endif()
  separate_arguments(words UNIX_COMMAND "${words}")
  # The last mention counts: what others need comes after them.
  list(REVERSE words)
  list(REMOVE_DUPLICATES words)
  list(REVERSE words)
  set(folders ${words})
  list(FILTER folders INCLUDE REGEX "^-L")
  list(TRANSFORM folders REPLACE "^-L" "")
  add_library(${target} INTERFACE)
  foreach(word IN LISTS words)
    if(word MATCHES "^-l(.+)$")
      # By path, so that a release finds the archives.
      set(library library-NOTFOUND)
      find_library(library ${CMAKE_MATCH_1} HINTS ${folders} NO_CACHE)
      if(library)
        set(word ${library})
      endif()
      target_link_libraries(${target} INTERFACE ${word})
    elseif(word MATCHES "^-Wl,|^-pthread")
      target_link_libraries(${target} INTERFACE ${word})
    elseif(word MATCHES "^-[ID]")
      target_compile_options(${target} INTERFACE ${word})
    endif()
  endforeach()
endfunction()
