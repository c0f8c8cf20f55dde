# "base/version.h": PGPT_VERSION, the project's version with the commit it was built from.
#
# Included by the build, it makes a target that runs this same file as a script before every build; the header is
# rewritten only when its text changes, so that a commit recompiles the few files that include it and nothing else.

if(NOT CMAKE_SCRIPT_MODE_FILE)
    find_package(Git QUIET)
    set(PGPT_GENERATED_DIR "${CMAKE_CURRENT_BINARY_DIR}/generated")
    set(PGPT_VERSION_HEADER "${PGPT_GENERATED_DIR}/base/version.h")
    target_include_directories(pgpt_options INTERFACE "${PGPT_GENERATED_DIR}")
    set(write_header
        "${CMAKE_COMMAND}" "-DVERSION=${PROJECT_VERSION}" "-DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}"
        "-DHEADER=${PGPT_VERSION_HEADER}" "-DGIT=${GIT_EXECUTABLE}" -P "${CMAKE_CURRENT_LIST_FILE}")
    execute_process(COMMAND ${write_header}) # editors and linters want it before the first build
    add_custom_target(
        pgpt_version
        COMMAND ${write_header}
        BYPRODUCTS "${PGPT_VERSION_HEADER}"
        COMMENT "Looking up the version"
        VERBATIM)
    return()
endif()

# A build of the tagged commit is "0.1.0"; any other is "0.1.0+<commit>", with ".dirty" for uncommitted changes.
set(text "${VERSION}")
if(GIT AND EXISTS "${SOURCE}/.git")
    execute_process(
        COMMAND "${GIT}" -c "safe.directory=${SOURCE}" describe --tags --always --dirty=.dirty --match "v${VERSION}"
        WORKING_DIRECTORY "${SOURCE}"
        OUTPUT_VARIABLE commit
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(commit AND NOT commit STREQUAL "v${VERSION}")
        string(REGEX REPLACE "^v${VERSION}[-.]?" "" commit "${commit}")
        string(APPEND text "+${commit}")
    endif()
endif()

set(content "/* Written by the build (cmake/Version.cmake). */
#ifndef PGPT_BASE_VERSION_H
#define PGPT_BASE_VERSION_H

#define PGPT_VERSION \"${text}\"

#endif
")
if(EXISTS "${HEADER}")
    file(READ "${HEADER}" present)
endif()
if(NOT content STREQUAL present)
    file(WRITE "${HEADER}" "${content}")
endif()
