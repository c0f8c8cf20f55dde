# PGPT_CUDA: the CUDA backend, src/backend/cuda. Its sources are .cu files, compiled by nvcc into the target
# pgpt_cuda; a pgpt without it has absent.c in their place. PGPT_CUDNN: cuDNN's attention, for sources with
# cudnn in their names. PGPT_NCCL: NCCL, in src/comm/comm_nccl.c.
#
# auto builds it where there is a GPU, for the architecture of that GPU (Gpu.cmake): compiling takes minutes,
# which nobody wants to wait for in vain. on builds it wherever there is nvcc, for 80 (A100) and 90 (H100,
# H200). Either can be told otherwise by CMAKE_CUDA_ARCHITECTURES. nvcc is looked for on the PATH, in CUDACXX,
# CUDA_HOME and CUDA_PATH, and where NVIDIA's packages put it.
#
# Of cuBLASLt, cuDNN and NCCL the headers are needed, not the libraries: those are opened when a GPU is used
# (src/base/system/library.h), so that the same program runs, and costs nothing, where there are none. The CUDA
# runtime is linked, statically; it loads the driver when it is first asked for a device.

include(CheckLanguage)
include(Gpu)

# Why CUDA cannot be had: an error if it was asked for.
macro(pgpt_no_cuda)
    if(PGPT_CUDA STREQUAL on)
        message(FATAL_ERROR "PGPT_CUDA is on, but " ${ARGN} " Install NVIDIA's CUDA toolkit (nvcc, cuBLAS), or name nvcc "
                            "with -DCMAKE_CUDA_COMPILER=...")
    endif()
    pgpt_say_once("CUDA is left out: there is a GPU here, but " ${ARGN})
endmacro()

# CMAKE_CUDA_COMPILER, or pgpt_no_cuda. Where CUDA is only taken if it is there, an nvcc that does not work,
# say for want of a C++ compiler that it knows, is none.
macro(pgpt_find_nvcc)
    if(NOT CMAKE_CUDA_COMPILER)
        unset(CMAKE_CUDA_COMPILER CACHE) # CMake takes any entry of this name for an answer
        if(NOT nvcc_PROGRAM)
            pgpt_no_cuda("there is no nvcc.")
        elseif(PGPT_CUDA STREQUAL on)
            set(CMAKE_CUDA_COMPILER "${nvcc_PROGRAM}" CACHE FILEPATH "NVIDIA's compiler")
        else()
            set(ENV{CUDACXX} "${nvcc_PROGRAM}")
            check_language(CUDA)
            if(NOT CMAKE_CUDA_COMPILER)
                pgpt_no_cuda("${nvcc_PROGRAM} does not work here (-DPGPT_CUDA=on shows why).")
            endif()
        endif()
    endif()
endmacro()

set(PGPT_HAVE_CUDA OFF)
pgpt_switch(PGPT_CUDA "NVIDIA GPUs by CUDA")
set(cuda_wanted false)
if(NOT PGPT_CUDA STREQUAL off)
    find_program(
        nvcc_PROGRAM nvcc
        HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH
        PATHS /usr/local/cuda /opt/cuda
        PATH_SUFFIXES bin
        DOC "NVIDIA's compiler")
    mark_as_advanced(nvcc_PROGRAM)
    set(nvcc "")
    if(CMAKE_CUDA_COMPILER)
        set(nvcc "${CMAKE_CUDA_COMPILER}")
    elseif(nvcc_PROGRAM)
        set(nvcc "${nvcc_PROGRAM}")
    endif()
    pgpt_choose_architectures("${nvcc}" cuda_wanted cuda_architectures)
endif()
if(cuda_wanted)
    pgpt_find_nvcc()
    if(CMAKE_CUDA_COMPILER)
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES ${cuda_architectures} CACHE STRING "GPU architectures to compile for")
        endif()
        set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo" CACHE STRING "CUDA flags of the Release build")
        set(CMAKE_CUDA_FLAGS_DEBUG "-O1 -lineinfo" CACHE STRING "CUDA flags of the Debug build")
        set(CMAKE_CUDA_FLAGS_SANITIZE "-O1 -lineinfo" CACHE STRING "CUDA flags of the Sanitize build")
        enable_language(CUDA)
        find_package(CUDAToolkit)
        find_path(cublas_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
        mark_as_advanced(cublas_INCLUDE_DIR)
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
            pgpt_no_cuda("${CMAKE_CUDA_COMPILER} is version ${CMAKE_CUDA_COMPILER_VERSION}, and 12 is the oldest that will do.")
        elseif(NOT TARGET CUDA::cudart_static OR NOT cublas_INCLUDE_DIR)
            pgpt_no_cuda("cudart_static and cublasLt.h are not beside ${CMAKE_CUDA_COMPILER}.")
        else()
            set(PGPT_HAVE_CUDA ON)
        endif()
    endif()
endif()

set(PGPT_HAVE_CUDNN OFF)
pgpt_switch(PGPT_CUDNN "Attention by cuDNN")
if(PGPT_HAVE_CUDA AND NOT PGPT_CUDNN STREQUAL off)
    find_path(cudnn_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    mark_as_advanced(cudnn_INCLUDE_DIR)
    if(cudnn_INCLUDE_DIR)
        set(PGPT_HAVE_CUDNN ON)
    elseif(PGPT_CUDNN STREQUAL on)
        message(FATAL_ERROR "PGPT_CUDNN is on, but cudnn.h is missing. Debian and Ubuntu, from NVIDIA's repository: apt "
                            "install libcudnn9-dev-cuda-13")
    endif()
endif()

set(PGPT_HAVE_NCCL OFF)
pgpt_switch(PGPT_NCCL "Many GPUs by NCCL")
if(PGPT_HAVE_CUDA AND NOT PGPT_NCCL STREQUAL off)
    find_path(nccl_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    mark_as_advanced(nccl_INCLUDE_DIR)
    if(nccl_INCLUDE_DIR)
        set(PGPT_HAVE_NCCL ON)
    elseif(PGPT_NCCL STREQUAL on)
        message(FATAL_ERROR "PGPT_NCCL is on, but nccl.h is missing. Debian and Ubuntu, from NVIDIA's repository: apt "
                            "install libnccl-dev")
    endif()
endif()

# Files *_sm90.cu have kernels by instructions that 90 alone has, not its successors: they are compiled for
# 90a in place of 90. A build that is not for 90 is without these kernels, and its program does without them.
function(pgpt_cuda_for_90a target)
    set(architectures ${CMAKE_CUDA_ARCHITECTURES})
    if(architectures STREQUAL native AND CMAKE_CUDA_ARCHITECTURES_NATIVE)
        set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
    endif()
    list(TRANSFORM architectures REPLACE "^90a?(-real)?$" "90a-real")
    list(REMOVE_DUPLICATES architectures)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
    if("90a-real" IN_LIST architectures)
        target_compile_definitions(${target} PRIVATE PGPT_HAVE_SM90A)
    endif()
endfunction()

# Takes the files of src/backend/cuda that this build does not use out of the list of C sources, and makes
# pgpt_cuda and pgpt_cuda_90a.
function(pgpt_add_cuda sources)
    set(kept ${${sources}})
    if(NOT PGPT_HAVE_CUDA) # what plans for a GPU is C, and absent.c stands for the rest
        return()
    endif()
    list(FILTER kept EXCLUDE REGEX "/backend/cuda/absent\\.c$")
    set(${sources} ${kept} PARENT_SCOPE)

    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/backend/cuda/*.cu)
    if(NOT PGPT_HAVE_CUDNN)
        list(FILTER cuda_sources EXCLUDE REGEX "cudnn[^/]*$")
    endif()
    set(cuda_90a_sources ${cuda_sources})
    list(FILTER cuda_90a_sources INCLUDE REGEX "_sm90\\.cu$")
    list(FILTER cuda_sources EXCLUDE REGEX "_sm90\\.cu$")
    add_library(pgpt_cuda OBJECT ${cuda_sources})
    add_library(pgpt_cuda_90a OBJECT ${cuda_90a_sources})
    pgpt_cuda_for_90a(pgpt_cuda_90a)
    # C in style: no exceptions and no types at run time, so that the program needs no C++ library.
    set(host_flags -Wall -Wextra -Wshadow -fno-exceptions -fno-rtti -fno-threadsafe-statics
        -fno-semantic-interposition)
    if(PGPT_WERROR)
        list(APPEND host_flags -Werror)
    endif()
    list(JOIN host_flags "," host_flags)
    foreach(target pgpt_cuda pgpt_cuda_90a)
        set_target_properties(
            ${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON)
        target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
        target_compile_options(${target} PRIVATE "-Xcompiler=${host_flags}")
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13) # whose drivers unpack it: a seventh of the size
            target_compile_options(${target} PRIVATE --compress-mode=size)
        endif()
        target_include_directories(${target} SYSTEM PRIVATE "${cublas_INCLUDE_DIR}")
        target_link_libraries(${target} PRIVATE CUDA::cudart_static)
    endforeach()
    target_link_libraries(pgpt_dependencies INTERFACE CUDA::cudart_static)
    if(PGPT_HAVE_CUDNN)
        target_compile_definitions(pgpt_cuda PRIVATE PGPT_HAVE_CUDNN)
        target_include_directories(pgpt_cuda SYSTEM PRIVATE "${cudnn_INCLUDE_DIR}")
    endif()
    if(PGPT_HAVE_NCCL) # the one file that knows
        set_source_files_properties(
            "${CMAKE_CURRENT_SOURCE_DIR}/src/comm/comm_nccl.c"
            PROPERTIES COMPILE_DEFINITIONS PGPT_HAVE_NCCL INCLUDE_DIRECTORIES
                                                          "${nccl_INCLUDE_DIR};${CUDAToolkit_INCLUDE_DIRS}")
    endif()
    set(libraries "-L${CUDAToolkit_LIBRARY_DIR}" -lcudart_static -lrt)
    set(PGPT_PC_LIBS ${PGPT_PC_LIBS} ${libraries} PARENT_SCOPE)
endfunction()
