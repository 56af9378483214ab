# Finds the llama.cpp sources, in this order:
#   1. a checkout the user names with -DLLAMA_CPP_DIR=... (our patches must already be applied to it);
#   2. what an earlier configure unpacked into third_party/llama.cpp/source;
#   3. the pinned source release, fetched with pip, checked against its SHA-256, unpacked and patched.
# Every failure is one message that names the remedy.

cmake_policy(SET CMP0057 NEW)  # IN_LIST, also where this runs as a script

include("${CMAKE_CURRENT_LIST_DIR}/pin.cmake")

set(_llama_cpp_home "${CMAKE_CURRENT_LIST_DIR}")

# Sets OUT to the list of patch files in the order in which they apply.
function(_llama_cpp_patches OUT)
    file(GLOB patches "${_llama_cpp_home}/patches/*.patch")
    list(SORT patches)
    set(${OUT} "${patches}" PARENT_SCOPE)
endfunction()

# Sets Python_EXECUTABLE in the caller: the one that runs the build, else any.
macro(_llama_cpp_python)
    if(NOT Python_EXECUTABLE)
        find_package(Python COMPONENTS Interpreter REQUIRED)
    endif()
endmacro()

# Applies PATCH in DIR with git, else with patch, else with Python's patch_ng; with CHECK_REVERSED in ARGN only asks
# whether it is in already (git and patch alone can). Sets RESULT (0: yes) and OUTPUT in the caller.
function(_llama_cpp_apply DIR RESULT OUTPUT PATCH)
    if(NOT DEFINED GIT_EXECUTABLE)
        find_program(GIT_EXECUTABLE git)
    endif()
    if(NOT DEFINED PATCH_EXECUTABLE)
        find_program(PATCH_EXECUTABLE patch)
    endif()
    if(GIT_EXECUTABLE)
        # The ceiling keeps an enclosing repository from deciding which paths are touched.
        set(command ${CMAKE_COMMAND} -E env "GIT_CEILING_DIRECTORIES=${DIR}/.." ${GIT_EXECUTABLE} apply)
        if("CHECK_REVERSED" IN_LIST ARGN)
            list(APPEND command --reverse --check)
        endif()
    elseif(PATCH_EXECUTABLE)
        set(command ${PATCH_EXECUTABLE} -p1 --batch --silent)
        if("CHECK_REVERSED" IN_LIST ARGN)
            list(APPEND command --reverse --force --dry-run)
        endif()
        list(APPEND command -i)
    elseif("CHECK_REVERSED" IN_LIST ARGN)
        message(FATAL_ERROR "dflash-cpp: checking for the patches in a checkout needs git or patch; install one.")
    else()
        _llama_cpp_python()
        set(command ${Python_EXECUTABLE} -m patch_ng --quiet -p 1)
    endif()
    execute_process(COMMAND ${command} "${PATCH}" WORKING_DIRECTORY "${DIR}"
        RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    set(${RESULT} "${result}" PARENT_SCOPE)
    set(${OUTPUT} "${output}" PARENT_SCOPE)
endfunction()

# What the unpacked tree must be made of: the archive and every patch, by hash.
function(_llama_cpp_stamp OUT)
    set(stamp "${LLAMA_CPP_PIN_SHA256}")
    _llama_cpp_patches(patches)
    foreach(patch IN LISTS patches)
        file(SHA256 "${patch}" hash)
        string(APPEND stamp "\n${hash}")
    endforeach()
    set(${OUT} "${stamp}" PARENT_SCOPE)
endfunction()

# Sets ARCHIVE to the pinned source release, downloading it unless a good copy lies there.
function(_llama_cpp_download ARCHIVE)
    set(download_dir "${_llama_cpp_home}/download")
    set(archive "${download_dir}/${LLAMA_CPP_PIN_ARCHIVE}")
    if(NOT EXISTS "${archive}")
        _llama_cpp_python()
        message(STATUS "dflash-cpp: fetching ${LLAMA_CPP_PIN_PACKAGE} ${LLAMA_CPP_PIN_VERSION} (llama.cpp ${LLAMA_CPP_PIN_TAG}, 37 MB)")
        # --no-binary for this package alone: `:all:` would build cmake from source for its metadata.
        execute_process(
            COMMAND ${Python_EXECUTABLE} -m pip download --quiet --no-deps
                    --no-binary ${LLAMA_CPP_PIN_PACKAGE} --dest "${download_dir}"
                    "${LLAMA_CPP_PIN_PACKAGE}==${LLAMA_CPP_PIN_VERSION}"
            RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
        if(NOT result EQUAL 0 OR NOT EXISTS "${archive}")
            message(FATAL_ERROR
                "dflash-cpp: could not fetch the llama.cpp sources with pip.\n${output}\n"
                "Remedy: connect to the index that pip uses and try again, or put ${LLAMA_CPP_PIN_ARCHIVE} into "
                "${download_dir}, or name a llama.cpp checkout at tag ${LLAMA_CPP_PIN_TAG} with -DLLAMA_CPP_DIR=DIR.")
        endif()
    endif()
    file(SHA256 "${archive}" hash)
    if(NOT hash STREQUAL LLAMA_CPP_PIN_SHA256)
        message(FATAL_ERROR
            "dflash-cpp: ${archive} is not the pinned release.\n"
            "  expected SHA-256 ${LLAMA_CPP_PIN_SHA256}\n  found            ${hash}\n"
            "Remedy: delete that file and configure again; if the hash still differs, the index serves another "
            "file and must not be trusted.")
    endif()
    set(${ARCHIVE} "${archive}" PARENT_SCOPE)
endfunction()

# Unpacks the llama.cpp/ folder of ARCHIVE to DIR and applies the patches; DIR appears whole or not at all.
function(_llama_cpp_unpack ARCHIVE DIR STAMP)
    set(scratch "${DIR}.partial")
    file(REMOVE_RECURSE "${scratch}" "${DIR}")
    file(ARCHIVE_EXTRACT INPUT "${ARCHIVE}" DESTINATION "${scratch}" PATTERNS "*/llama.cpp/*")
    file(GLOB unpacked "${scratch}/*/llama.cpp")
    if(NOT unpacked)
        message(FATAL_ERROR "dflash-cpp: ${ARCHIVE} holds no llama.cpp/ folder.\n"
            "Remedy: move the pin (third_party/llama.cpp/README.md) to a release that has one.")
    endif()
    _llama_cpp_patches(patches)
    foreach(patch IN LISTS patches)
        _llama_cpp_apply("${unpacked}" result output "${patch}")
        if(NOT result EQUAL 0)
            file(REMOVE_RECURSE "${scratch}")
            message(FATAL_ERROR
                "dflash-cpp: ${patch} does not apply to llama.cpp ${LLAMA_CPP_PIN_TAG}.\n${output}\n"
                "Remedy: refresh the patch against the pin (third_party/llama.cpp/README.md).")
        endif()
    endforeach()
    file(WRITE "${unpacked}/.dflash-stamp" "${STAMP}")
    file(RENAME "${unpacked}" "${DIR}")
    file(REMOVE_RECURSE "${scratch}")
endfunction()

# A checkout of the user's is never changed: each patch must be there already.
function(_llama_cpp_check_checkout DIR)
    if(NOT EXISTS "${DIR}/include/llama.h")
        message(FATAL_ERROR "dflash-cpp: LLAMA_CPP_DIR=${DIR} is not a llama.cpp checkout (no include/llama.h).\n"
            "Remedy: name the top folder of a checkout at tag ${LLAMA_CPP_PIN_TAG}, or leave LLAMA_CPP_DIR out.")
    endif()
    _llama_cpp_patches(patches)
    foreach(patch IN LISTS patches)
        _llama_cpp_apply("${DIR}" result output "${patch}" CHECK_REVERSED)
        if(NOT result EQUAL 0)
            message(FATAL_ERROR "dflash-cpp: the checkout ${DIR} lacks ${patch}.\n"
                "Remedy: run `git apply ${patch}` there (tag ${LLAMA_CPP_PIN_TAG}), or leave LLAMA_CPP_DIR out.")
        endif()
    endforeach()
endfunction()

# Sets OUT to the folder of the llama.cpp sources to build.
function(llama_cpp_sources OUT)
    if(LLAMA_CPP_DIR)
        get_filename_component(dir "${LLAMA_CPP_DIR}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
        _llama_cpp_check_checkout("${dir}")
        set(${OUT} "${dir}" PARENT_SCOPE)
        return()
    endif()
    set(dir "${_llama_cpp_home}/source")
    _llama_cpp_stamp(stamp)
    set(found "")
    if(EXISTS "${dir}/.dflash-stamp")
        file(READ "${dir}/.dflash-stamp" found)
    endif()
    if(NOT found STREQUAL stamp)
        _llama_cpp_download(archive)
        _llama_cpp_unpack("${archive}" "${dir}" "${stamp}")
    endif()
    set(${OUT} "${dir}" PARENT_SCOPE)
endfunction()
