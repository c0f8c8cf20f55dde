# pgpt_dependencies: the libraries that libpgpt needs, as one interface target. What is missing is named by its Debian
# package; scripts/setup installs the same packages. Libraries outside the system's folders are found below
# CMAKE_PREFIX_PATH.

add_library(pgpt_dependencies INTERFACE)
set(PGPT_PC_REQUIRES "") # what pgpt.pc tells the linkers of the static library
set(PGPT_PC_LIBS "-lm")

# A library that must be there, by its header: makes the target <library>::<library>.
function(pgpt_require library header package purpose)
    find_library(${library}_LIBRARY ${library})
    find_path(${library}_INCLUDE_DIR ${header})
    mark_as_advanced(${library}_LIBRARY ${library}_INCLUDE_DIR)
    if(NOT ${library}_LIBRARY OR NOT ${library}_INCLUDE_DIR)
        message(FATAL_ERROR "${library} is missing: ${purpose}. Debian and Ubuntu: apt install ${package}")
    endif()
    add_library(${library}::${library} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(
        ${library}::${library} PROPERTIES IMPORTED_LOCATION "${${library}_LIBRARY}"
                                          INTERFACE_INCLUDE_DIRECTORIES "${${library}_INCLUDE_DIR}")
endfunction()

# An optional part of the program: a cache entry that is auto (taken if found), on (an error if not found) or off.
function(pgpt_switch name help)
    set(${name} auto CACHE STRING "${help}: auto, on or off")
    set_property(CACHE ${name} PROPERTY STRINGS auto on off)
    string(TOLOWER "${${name}}" value)
    if(value MATCHES "^(1|yes|true)$")
        set(value on)
    elseif(value MATCHES "^(0|no|false)$")
        set(value off)
    endif()
    if(NOT value MATCHES "^(auto|on|off)$")
        message(FATAL_ERROR "${name} is ${${name}}; use auto, on or off")
    endif()
    set(${name} ${value} PARENT_SCOPE)
endfunction()

pgpt_require(jansson jansson.h libjansson-dev "it reads and writes JSON")
pgpt_require(inih ini.h libinih-dev "it reads configuration files")
pgpt_require(pcre2-8 pcre2.h libpcre2-dev "it splits text into words for tokenizers")
target_link_libraries(pgpt_dependencies INTERFACE jansson::jansson inih::inih pcre2-8::pcre2-8 m)
list(APPEND PGPT_PC_REQUIRES jansson inih libpcre2-8)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED) # checkpoints are written in one of their own
target_link_libraries(pgpt_dependencies INTERFACE Threads::Threads)
list(APPEND PGPT_PC_LIBS -pthread)

if(CMAKE_DL_LIBS) # for base/system/library.c; nothing where the C library has dlopen itself and says so
    target_link_libraries(pgpt_dependencies INTERFACE ${CMAKE_DL_LIBS})
    list(APPEND PGPT_PC_LIBS -l${CMAKE_DL_LIBS})
endif()

pgpt_switch(PGPT_OPENMP "Threads by OpenMP")
if(NOT PGPT_OPENMP STREQUAL off)
    find_package(OpenMP COMPONENTS C)
    if(OpenMP_C_FOUND)
        target_link_libraries(pgpt_dependencies INTERFACE OpenMP::OpenMP_C)
        list(APPEND PGPT_PC_LIBS ${OpenMP_C_FLAGS})
    elseif(PGPT_OPENMP STREQUAL on)
        message(FATAL_ERROR "PGPT_OPENMP is on, but ${CMAKE_C_COMPILER} has no OpenMP. GCC brings it along; for Clang on "
                            "Debian and Ubuntu: apt install libomp-dev")
    else()
        message(WARNING "OpenMP is missing: pgpt will use one thread. For Clang on Debian and Ubuntu: apt install libomp-dev")
    endif()
endif()

pgpt_switch(PGPT_MPI "Many processes by MPI")
if(NOT PGPT_MPI STREQUAL off)
    find_package(MPI COMPONENTS C)
    if(MPI_C_FOUND)
        set(PGPT_HAVE_MPI ON)
        target_link_libraries(pgpt_dependencies INTERFACE MPI::MPI_C)
        list(APPEND PGPT_PC_LIBS ${MPI_C_LIBRARIES})
    elseif(PGPT_MPI STREQUAL on)
        message(FATAL_ERROR "PGPT_MPI is on, but there is no MPI. Debian and Ubuntu: apt install libopenmpi-dev "
                            "openmpi-bin (or libmpich-dev mpich); elsewhere name its compiler with -DMPI_C_COMPILER=...")
    else()
        message(STATUS "MPI is missing: pgpt will run as one process. Debian and Ubuntu: apt install libopenmpi-dev "
                       "openmpi-bin")
    endif()
endif()

pgpt_switch(PGPT_URING "Files read and written by io_uring (liburing)")
if(NOT PGPT_URING STREQUAL off)
    find_library(uring_LIBRARY NAMES liburing.a uring) # small, and so a program runs where it is not installed
    find_path(uring_INCLUDE_DIR liburing.h)
    mark_as_advanced(uring_LIBRARY uring_INCLUDE_DIR)
    if(uring_LIBRARY AND uring_INCLUDE_DIR)
        set(PGPT_HAVE_URING ON)
        target_link_libraries(pgpt_dependencies INTERFACE ${uring_LIBRARY})
        target_include_directories(pgpt_dependencies SYSTEM INTERFACE ${uring_INCLUDE_DIR})
        list(APPEND PGPT_PC_REQUIRES liburing)
    elseif(PGPT_URING STREQUAL on)
        message(FATAL_ERROR "PGPT_URING is on, but liburing is missing. Debian and Ubuntu: apt install liburing-dev")
    else()
        message(STATUS "liburing is missing: files of --offload are read and written by threads. Debian and Ubuntu: "
                       "apt install liburing-dev")
    endif()
endif()

if(BUILD_TESTING)
    pgpt_require(cmocka cmocka.h libcmocka-dev "the tests need it (-DBUILD_TESTING=OFF builds without them)")
endif()
