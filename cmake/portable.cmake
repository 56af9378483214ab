# ggml as shared libraries, its CPU code once for each generation of processors: what a wheel for other machines needs.
# llama.cpp and the core stay static; ggml's own loader picks the best variant when the backends are loaded.
#
# The libraries have names of ours: another llama.cpp in the same process (llama-cpp-python) has ggml's.

set(GGML_NATIVE           OFF CACHE BOOL "" FORCE)
set(GGML_BACKEND_DL       ON  CACHE BOOL "" FORCE)
set(GGML_CPU_ALL_VARIANTS ON  CACHE BOOL "" FORCE)
# What llama.cpp sets before it adds ggml.
set(GGML_LLAMAFILE_DEFAULT   ON)
set(GGML_CUDA_GRAPHS_DEFAULT ON)
set(GGML_BUILD_NUMBER ${LLAMA_BUILD_NUMBER})
set(GGML_BUILD_COMMIT ${LLAMA_BUILD_COMMIT})

set(BUILD_SHARED_LIBS ON)
add_subdirectory("${LLAMA_CPP_SOURCE_DIR}/ggml" ggml EXCLUDE_FROM_ALL)
set(BUILD_SHARED_LIBS OFF)

set_target_properties(ggml ggml-base PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(ggml PROPERTIES OUTPUT_NAME dflash-ggml)
set_target_properties(ggml-base PROPERTIES OUTPUT_NAME dflash-ggml-base)
set_target_properties(${GGML_AVAILABLE_BACKENDS} PROPERTIES INSTALL_RPATH "$ORIGIN")
# A wheel holds no symbolic links: one file each.
foreach(library IN LISTS GGML_AVAILABLE_BACKENDS ITEMS ggml ggml-base)
    set_property(TARGET ${library} PROPERTY VERSION)
    set_property(TARGET ${library} PROPERTY SOVERSION)
endforeach()

# Everything into one folder: the backends are looked for beside llama-server, and in bin/ beside the module.
function(dflash_install_portable folder)
    install(TARGETS ggml ggml-base ${GGML_AVAILABLE_BACKENDS}
        LIBRARY DESTINATION ${folder} RUNTIME DESTINATION ${folder})
    set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN/bin")
    if(TARGET llama-server)
        set_target_properties(llama-server PROPERTIES INSTALL_RPATH "$ORIGIN")
    endif()
endfunction()
