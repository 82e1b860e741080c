# A release that runs on any node: gRPC, protobuf, abseil, OpenSSL, SQLite and libstdc++ are linked
# statically; what remains is the C library and libgcc_s. Included before any find_package.
#
# It must run with glibc 2.34 (RHEL 9): deploy/release.sh looks at each symbol's version.
#   - libgcc_s stays dynamic on purpose: its static twin needs _dl_find_object (glibc 2.35).
#   - arc4random (glibc 2.36), which libstdc++ and expat call, is ours.

set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
set(PKG_CONFIG_ARGN --static)
set(Protobuf_USE_STATIC_LIBS ON)
set(OPENSSL_USE_STATIC_LIBS ON)
add_link_options(-static-libstdc++ -Wl,--gc-sections)

# The distribution's abseil package names its shared objects; their archives lie beside them.
macro(dgxrun_absl_archives)
  get_property(_targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(_target IN LISTS _targets)
    if(_target MATCHES "^absl::")
      get_target_property(_location ${_target} IMPORTED_LOCATION_NONE)
      if(_location MATCHES "^(.*)\\.so[.0-9]*$")
        set_target_properties(${_target} PROPERTIES IMPORTED_LOCATION_NONE ${CMAKE_MATCH_1}.a IMPORTED_SONAME_NONE "")
      endif()
    endif()
  endforeach()
endmacro()

# The distribution has no libspdlog.a and no libfmt.a: compile them in from the headers.
macro(dgxrun_spdlog_headers)
  add_library(spdlog::spdlog INTERFACE IMPORTED)
  target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
endmacro()

# Called when the programs are there.
function(dgxrun_portable_programs)
  foreach(_program ${ARGN})
    target_sources(${_program} PRIVATE ${CMAKE_SOURCE_DIR}/deploy/portable_random.cc)
  endforeach()
endfunction()
