#include "bindings.h"

#include <atomic>
#include <chrono>

#include "dflash/error.h"

bool python_interrupted() {
    using clock = std::chrono::steady_clock;
    thread_local clock::time_point asked;
    const clock::time_point now = clock::now();
    if (now - asked < std::chrono::milliseconds(50)) {
        return false;
    }
    asked = now;
    py::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

PYBIND11_MODULE(_core, m) {
    m.doc() = "The C++ core of dflash_cpp. Use the dflash_cpp package instead.";
    m.attr("version") = DFLASH_VERSION;
    m.attr("llama_tag") = DFLASH_LLAMA_TAG;

    static py::exception<dflash::Error> error(m, "DFlashError");
    static py::exception<dflash::ModelError> model_error(m, "ModelError", error);
    static py::exception<dflash::ContextOverflowError> overflow_error(m, "ContextOverflowError", error);
    static py::exception<dflash::IncompatibleDrafterError> incompatible_error(m, "IncompatibleDrafterError", error);
    static py::exception<dflash::NgramMapError> ngram_map_error(m, "NgramMapError", error);
    static py::exception<dflash::BusyError> busy_error(m, "BusyError", error);
    error.attr("__doc__") = "The base of all errors of this package.";
    model_error.attr("__doc__") = "A model that is missing, damaged, of another kind, or larger than the memory.";
    overflow_error.attr("__doc__") = "More tokens than the context holds.";
    incompatible_error.attr("__doc__") = "A drafter that is sound but belongs to another target.";
    ngram_map_error.attr("__doc__") =
        "A k4v table file that is damaged, of another version, or of another tokenizer.";
    busy_error.attr("__doc__") = "A second thread entered an object that serves one at a time.";
    for (const py::handle type : {static_cast<py::handle>(error), static_cast<py::handle>(model_error),
                                  static_cast<py::handle>(overflow_error), static_cast<py::handle>(ngram_map_error),
                                  static_cast<py::handle>(busy_error), static_cast<py::handle>(incompatible_error)}) {
        py::setattr(type, "__module__", py::str("dflash_cpp"));
    }
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) {
                std::rethrow_exception(thrown);
            }
        } catch (const dflash::Interrupted &) {
            // The signal handler's own exception is already set; without one Ctrl-C is what it was.
            if (!PyErr_Occurred()) {
                PyErr_SetNone(PyExc_KeyboardInterrupt);
            }
        } catch (const dflash::ModelError & e) {
            py::set_error(model_error, e.what());
        } catch (const dflash::ContextOverflowError & e) {
            py::set_error(overflow_error, e.what());
        } catch (const dflash::IncompatibleDrafterError & e) {
            py::set_error(incompatible_error, e.what());
        } catch (const dflash::NgramMapError & e) {
            py::set_error(ngram_map_error, e.what());
        } catch (const dflash::BusyError & e) {
            py::set_error(busy_error, e.what());
        } catch (const dflash::Error & e) {
            py::set_error(error, e.what());
        }
    });

    bind_ngram_map(m);
    bind_gguf_file(m);
    bind_target(m);
    bind_drafter(m);
    bind_session(m);
    bind_peer(m);
    bind_teacher(m);
    bind_tools(m);
}
