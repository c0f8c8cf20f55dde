# `cmake --install`: program, libraries, headers (include/pgpt/<room>/...), pkg-config file, manual page.

install(TARGETS pgpt pgpt_static pgpt_shared)
install(
    DIRECTORY src/ "${PGPT_GENERATED_DIR}/"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/pgpt"
    FILES_MATCHING
    PATTERN "*.h"
    PATTERN cli EXCLUDE)
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
