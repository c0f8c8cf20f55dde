# pgpt_options: the flags of our own code (the library, the program and the tests), as one interface target.

include(CheckCCompilerFlag)

add_library(pgpt_options INTERFACE)
target_include_directories(pgpt_options INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/src" "${CMAKE_CURRENT_SOURCE_DIR}/include")

# Floating point stays strict: no -ffast-math, since kernels are checked against references bit by bit. Nobody reads
# errno after a math call or traps exceptions, and without those two the compiler may vectorise.
# Interposition is given up because with -fPIC it would forbid inlining across the functions of a file.
target_compile_options(
    pgpt_options
    INTERFACE -Wall
              -Wextra
              -Wshadow
              -Wconversion
              -Wstrict-prototypes
              -Wmissing-prototypes
              -Wvla
              -fno-math-errno
              -fno-trapping-math
              -fno-semantic-interposition)

if(PGPT_WERROR)
    target_compile_options(pgpt_options INTERFACE -Werror)
endif()
if(NOT TARGET OpenMP::OpenMP_C) # the omp pragmas are all there is to ignore, and the numbers of threads that they take
    target_compile_options(pgpt_options INTERFACE -Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-variable)
endif()

if(NOT PGPT_ARCH STREQUAL generic)
    string(MAKE_C_IDENTIFIER "PGPT_HAS_MARCH_${PGPT_ARCH}" has_march)
    check_c_compiler_flag("-march=${PGPT_ARCH}" ${has_march})
    if(${has_march})
        target_compile_options(pgpt_options INTERFACE "-march=${PGPT_ARCH}")
    elseif(PGPT_ARCH STREQUAL native)
        message(WARNING "${CMAKE_C_COMPILER} does not know -march=native: compiling for its default processor. "
                        "Name one with -DPGPT_ARCH=... if kernels are slow.")
    else()
        message(FATAL_ERROR "${CMAKE_C_COMPILER} does not know -march=${PGPT_ARCH}. Use -DPGPT_ARCH=native, generic, "
                            "or a name from the compiler's manual (x86-64-v3, armv8.2-a, ...).")
    endif()
endif()
