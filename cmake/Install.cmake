# `cmake --install`: program, libraries, the public header, pkg-config file, manual page.

install(TARGETS pgpt pgpt_shared)

# The static library that is installed is one object in which only the functions of the public header can be
# seen, so that a program may have an error_user of its own. Ours (pgpt_static) shows everything, for the program
# and the tests.
if(CMAKE_SYSTEM_NAME STREQUAL Linux AND CMAKE_LINKER AND CMAKE_OBJCOPY AND NOT CMAKE_BUILD_TYPE STREQUAL Sanitize)
    set(closed_object "${CMAKE_CURRENT_BINARY_DIR}/closed/pgpt.o")
    file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/closed")
    add_custom_command(
        OUTPUT "${closed_object}"
        COMMAND "${CMAKE_LINKER}" -r -o "${closed_object}" ${library_objects}
        COMMAND "${CMAKE_OBJCOPY}" --wildcard "--keep-global-symbol=pgpt_*" "${closed_object}"
        DEPENDS ${library_objects}
        COMMENT "Closing the static library"
        COMMAND_EXPAND_LISTS VERBATIM)
    add_library(pgpt_closed STATIC "${closed_object}")
    set_target_properties(
        pgpt_closed PROPERTIES OUTPUT_NAME pgpt LINKER_LANGUAGE C
                               ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/closed")
    # Files alone are no order between targets where several are built at once.
    foreach(objects IN ITEMS pgpt_objects pgpt_cuda pgpt_cuda_90a)
        if(TARGET ${objects})
            add_dependencies(pgpt_closed ${objects})
        endif()
    endforeach()
    install(TARGETS pgpt_closed)
else()
    install(TARGETS pgpt_static)
endif()
install(FILES include/pgpt.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(PGPT_MANUAL)
    install(FILES "${PGPT_MANUAL}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" OPTIONAL)
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# The prefix is found from where the file lies, so that `cmake --install --prefix` and moved trees stay right.
set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH PGPT_PC_PREFIX "/${pkgconfig_dir}" "/")
string(REGEX REPLACE "/$" "" PGPT_PC_PREFIX "${PGPT_PC_PREFIX}")
list(JOIN PGPT_PC_REQUIRES ", " PGPT_PC_REQUIRES)
list(JOIN PGPT_PC_LIBS " " PGPT_PC_LIBS)
configure_file(cmake/pgpt.pc.in pgpt.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/pgpt.pc" DESTINATION "${pkgconfig_dir}")
