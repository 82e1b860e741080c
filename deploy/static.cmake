# A release that runs on any node: gRPC, protobuf, abseil, OpenSSL, SQLite and libstdc++ are linked
# statically; what remains is the C library and libgcc_s. Included before any find_package.
#
# libgcc_s stays dynamic on purpose: its static twin needs _dl_find_object (glibc 2.35).

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
