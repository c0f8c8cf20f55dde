# Which GPUs are here, and so whether PGPT_CUDA=auto builds the CUDA backend, and for what architectures.
#
# nvidia-smi is asked, which comes with the driver; in WSL it is not on the PATH. A machine may have a driver
# without that program (some containers), or one that is too old to know compute capabilities: then the
# driver's device files say that there is a GPU, and its architecture stays unknown.

# A line that the user of make sees too (it hides the rest), once a build folder.
function(pgpt_say_once)
    string(CONCAT line ${ARGN})
    if(NOT "${PGPT_CUDA_SAID}" STREQUAL "${line}")
        message(NOTICE "pgpt: ${line}")
        set(PGPT_CUDA_SAID "${line}" CACHE INTERNAL "The last line about CUDA")
    endif()
endfunction()

# `found` becomes true or false, `architectures` the list of theirs as CMake writes them (90), empty if they
# are unknown. nvidia_smi_PROGRAM and nvidia_device_FILES may be set beforehand.
function(pgpt_find_gpus found architectures)
    find_program(nvidia_smi_PROGRAM nvidia-smi PATHS /usr/lib/wsl/lib DOC "Names the GPUs")
    mark_as_advanced(nvidia_smi_PROGRAM)
    if(NOT DEFINED nvidia_device_FILES)
        set(nvidia_device_FILES "/dev/nvidia[0-9]*" "/proc/driver/nvidia/gpus/*" /dev/nvhost-gpu)
    endif()
    set(numbers)
    if(nvidia_smi_PROGRAM)
        execute_process(
            COMMAND "${nvidia_smi_PROGRAM}" --query-gpu=compute_cap --format=csv,noheader
            OUTPUT_VARIABLE text
            ERROR_QUIET
            RESULT_VARIABLE code
            TIMEOUT 60)
        if(code EQUAL 0)
            string(REGEX MATCHALL "[0-9]+\\.[0-9]" numbers "${text}")
            list(TRANSFORM numbers REPLACE "\\." "")
            list(REMOVE_DUPLICATES numbers)
        endif()
    endif()
    file(GLOB devices ${nvidia_device_FILES})
    if(numbers OR devices)
        set(${found} true PARENT_SCOPE)
    else()
        set(${found} false PARENT_SCOPE)
    endif()
    set(${architectures} ${numbers} PARENT_SCOPE)
endfunction()

# Is a GPU here that the kernels can run on, or is CUDA wanted anyway? The answer is in `wanted`, and in
# `architectures` what to compile for. `nvcc` is the compiler, or empty. A GPU that it does not know yet gets
# code for 90, which the GPU's driver translates.
function(pgpt_choose_architectures nvcc wanted architectures)
    set(${wanted} true PARENT_SCOPE)
    set(${architectures} 80-real 90 PARENT_SCOPE)
    if(PGPT_CUDA STREQUAL on)
        return()
    endif()
    pgpt_find_gpus(found numbers)
    set(able ${numbers})
    list(FILTER able EXCLUDE REGEX "^[1-7][0-9]$") # 80 is the oldest with the instructions
    if(found AND NOT numbers) # a GPU of unknown kind
        return()
    elseif(NOT able)
        set(${wanted} false PARENT_SCOPE)
        if(numbers)
            pgpt_say_once("CUDA is left out: the GPU here has architecture ${numbers}, and 80 is the oldest that will do.")
        elseif(nvcc)
            pgpt_say_once("CUDA is left out: there is no NVIDIA GPU here. `make PGPT_CUDA=on` builds it in all the same.")
        endif()
        return()
    endif()
    set(known)
    if(nvcc)
        execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    endif()
    foreach(number IN LISTS able)
        if(NOT known MATCHES "compute_${number}(\n|$)")
            return()
        endif()
    endforeach()
    set(${architectures} ${able} PARENT_SCOPE)
endfunction()
