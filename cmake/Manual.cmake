# The manual page pgpt.1, printed by the program from its own option table. Like Version.cmake, this file is both the
# rule (included by the build) and the script that the rule runs.

if(NOT CMAKE_SCRIPT_MODE_FILE)
    if(NOT CMAKE_CROSSCOMPILING)
        set(PGPT_MANUAL "${CMAKE_CURRENT_BINARY_DIR}/pgpt.1")
        add_custom_command(
            OUTPUT "${PGPT_MANUAL}"
            COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:pgpt>" "-DMANUAL=${PGPT_MANUAL}" -P
                    "${CMAKE_CURRENT_LIST_FILE}"
            DEPENDS pgpt
            COMMENT "Writing the manual page"
            VERBATIM)
        add_custom_target(manual ALL DEPENDS "${PGPT_MANUAL}")
    endif()
    return()
endif()

execute_process(COMMAND "${PROGRAM}" man OUTPUT_FILE "${MANUAL}.new" ERROR_VARIABLE words RESULT_VARIABLE result)
if(result EQUAL 0)
    file(RENAME "${MANUAL}.new" "${MANUAL}")
else()
    file(REMOVE "${MANUAL}.new")
    message(FATAL_ERROR "`pgpt man` failed, so there is no manual page: ${words}")
endif()
