# cuBLAS from a folder of its own, as PyPI's nvidia-cublas brings it (nvidia/cu13: include/, lib/), for CUDA toolkits that
# come without: its libraries have version numbers in their names only, which CMake does not look for.

set(DFLASH_CUBLAS_LINKS "${CMAKE_BINARY_DIR}/cublas")
foreach(library IN ITEMS cublas cublasLt)
    file(GLOB found "${DFLASH_CUBLAS_DIR}/lib/lib${library}.so*")
    if(NOT found)
        message(FATAL_ERROR "DFLASH_CUBLAS_DIR is ${DFLASH_CUBLAS_DIR}, and there is no lib/lib${library}.so in it; "
            "pip install nvidia-cublas, and give the folder nvidia/cu13 of its site-packages")
    endif()
    list(GET found 0 file)
    get_filename_component(name "${file}" NAME)
    file(MAKE_DIRECTORY "${DFLASH_CUBLAS_LINKS}")
    file(CREATE_LINK "${file}" "${DFLASH_CUBLAS_LINKS}/${name}" SYMBOLIC)
    file(CREATE_LINK "${file}" "${DFLASH_CUBLAS_LINKS}/lib${library}.so" SYMBOLIC)
endforeach()
list(APPEND CMAKE_LIBRARY_PATH "${DFLASH_CUBLAS_LINKS}")
include_directories(SYSTEM "${DFLASH_CUBLAS_DIR}/include")
list(APPEND CMAKE_INSTALL_RPATH "${DFLASH_CUBLAS_DIR}/lib")
