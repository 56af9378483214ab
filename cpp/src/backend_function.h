// A backend's function by its name: a backend may be a library that is loaded at run time, or not be there.
// Private to the core; safe from any thread.

#pragma once

#include "ggml-backend.h"

namespace dflash {

// Null where there is no such backend (`reg` null) or it has no such function.
template <typename Function>
Function * backend_function(ggml_backend_reg_t reg, const char * name) {
    return reg ? reinterpret_cast<Function *>(ggml_backend_reg_get_proc_address(reg, name)) : nullptr;
}

}  // namespace dflash
