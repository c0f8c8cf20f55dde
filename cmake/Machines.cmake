# "plan/machines_generated.h": the files of machines/, as names and texts, for src/plan/machine.c. Written again when one
# of them changes, by the next configuration, which that brings about.

file(GLOB machine_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/machines/*.ini")
set(names "")
set(texts "")
foreach(file IN LISTS machine_files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    get_filename_component(name "${file}" NAME_WE)
    file(READ "${file}" text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
    string(APPEND names "    \"${name}\",\n")
    string(APPEND texts "    \"${text}\",\n")
endforeach()
set(machines_header "${PGPT_GENERATED_DIR}/plan/machines_generated.h")
set(content "/* Written by the build (cmake/Machines.cmake) from machines/. */
const char *const machine_names[] = {\n${names}    NULL,\n};

static const char *const machine_texts[] = {\n${texts}    NULL,\n};
")
if(EXISTS "${machines_header}")
    file(READ "${machines_header}" present)
endif()
if(NOT content STREQUAL present)
    file(WRITE "${machines_header}" "${content}")
endif()
