# PGPT_FUZZ: the fuzz targets, one program for each tests/fuzz/fuzz_*.c, in <build>/fuzz. They want clang, for its
# libFuzzer, and belong into the Sanitize build, so that what they meet is seen. `make fuzz` does all of it (the preset
# fuzz, then scripts/fuzz).

option(PGPT_FUZZ "Build the fuzz targets (clang only)" OFF)
if(NOT PGPT_FUZZ)
    return()
endif()
if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "PGPT_FUZZ wants clang, which brings libFuzzer; this is ${CMAKE_C_COMPILER}. Use `make fuzz`, "
                        "or -DCMAKE_C_COMPILER=clang.")
endif()
if(NOT CMAKE_BUILD_TYPE STREQUAL Sanitize)
    message(FATAL_ERROR "PGPT_FUZZ wants -DCMAKE_BUILD_TYPE=Sanitize: without it, most of what a fuzzer breaks goes "
                        "unnoticed.")
endif()

# The library reports which of its branches an input took; the programs bring libFuzzer's main.
target_compile_options(pgpt_options INTERFACE -fsanitize=fuzzer-no-link)
target_link_options(pgpt_options INTERFACE -fsanitize=fuzzer-no-link)
add_custom_target(fuzz)
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source IN LISTS fuzz_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/fuzz")
    target_include_directories(${name} PRIVATE tests/fuzz)
    target_link_libraries(${name} PRIVATE pgpt_options pgpt_static)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzz ${name})
endforeach()
