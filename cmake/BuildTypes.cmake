# What Release, Debug and Sanitize mean. Cache entries, so that -DCMAKE_C_FLAGS_RELEASE=... still wins.
#
# Release keeps assertions (none stands in a hot loop). It and Sanitize have line tables, which give profiles and backtraces names.

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or Sanitize")
endif()
if(NOT CMAKE_BUILD_TYPE MATCHES "^(Release|RelWithDebInfo|MinSizeRel|Debug|Sanitize|None)$")
    message(FATAL_ERROR "CMAKE_BUILD_TYPE is ${CMAKE_BUILD_TYPE}; use Release, Debug or Sanitize")
endif()
set_property(CACHE CMAKE_BUILD_TYPE PROPERTY STRINGS Release Debug Sanitize)

set(CMAKE_C_FLAGS_RELEASE "-O3 -g1" CACHE STRING "C flags of the Release build")
set(CMAKE_C_FLAGS_DEBUG "-Og -g3" CACHE STRING "C flags of the Debug build")

set(sanitizers "-fsanitize=address,undefined -fno-sanitize-recover=all")
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer ${sanitizers}" CACHE STRING "C flags of the Sanitize build")
set(CMAKE_EXE_LINKER_FLAGS_SANITIZE "${sanitizers}" CACHE STRING "Linker flags of programs in the Sanitize build")
set(CMAKE_SHARED_LINKER_FLAGS_SANITIZE "${sanitizers}" CACHE STRING "Linker flags of libraries in the Sanitize build")
