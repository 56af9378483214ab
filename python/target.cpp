#include "bindings.h"

#include "dflash/target.h"

using dflash::MemoryUse;
using dflash::Target;
using dflash::TargetOptions;

void bind_target(py::module_ & m) {
    py::class_<MemoryUse>(m, "MemoryUse", "Bytes that a model takes.")
        .def_readonly("weights", &MemoryUse::weights)
        .def_readonly("context", &MemoryUse::context)
        .def_readonly("compute", &MemoryUse::compute)
        .def_property_readonly("total", &MemoryUse::total);

    py::class_<Target, std::shared_ptr<Target>>(m, "Target", "A loaded language model with its context.")
        .def(py::init([](const std::string & path, int n_ctx, int n_gpu_layers, int n_threads, int n_batch,
                         const std::string & type_k, const std::string & type_v, const std::string & flash_attention,
                         const py::object & progress, bool plan_only, int n_sequences, bool all_logits) {
                 TargetOptions options{n_ctx,  n_gpu_layers,    n_threads, n_batch, type_k,
                                       type_v, flash_attention, {},        {}};
                 options.plan_only = plan_only;
                 options.n_sequences = n_sequences;
                 options.all_logits = all_logits;
                 // Without a progress function the loader still has to notice Ctrl-C.
                 options.progress = [&progress](float share) {
                     if (python_interrupted()) {
                         return false;
                     }
                     if (!progress.is_none()) {
                         py::gil_scoped_acquire gil;
                         progress(share);
                     }
                     return true;
                 };
                 py::gil_scoped_release release;
                 auto target = std::make_shared<Target>(path, options);
                 target->set_interrupt(python_interrupted);
                 return target;
             }),
             py::arg("path"), py::kw_only(), py::arg("n_ctx"), py::arg("n_gpu_layers"), py::arg("n_threads"),
             py::arg("n_batch"), py::arg("type_k"), py::arg("type_v"), py::arg("flash_attention"),
             py::arg("progress"), py::arg("plan_only") = false, py::arg("n_sequences") = 1,
             py::arg("all_logits") = false)
        .def(
            "tokenize",
            [](const Target & target, const std::string & text, bool special) {
                return target.vocab().tokenize(text, special);
            },
            py::arg("text"), py::arg("special"), release_gil())
        .def(
            "detokenize",
            [](const Target & target, const dflash::Tokens & tokens, bool special) {
                return py::bytes(target.vocab().detokenize(tokens, special));
            },
            py::arg("tokens"), py::arg("special"))
        .def("measure_us", &Target::measure_us, py::arg("n_rows"), py::arg("n_repetitions"), py::arg("n_spared") = 0,
             release_gil())
        .def("set_pace", &Target::set_pace, py::arg("us"))
        .def("metadata", &Target::metadata, py::arg("key"))
        .def_property_readonly("vocab_size", [](const Target & target) { return target.vocab().size(); })
        .def_property_readonly("bos", [](const Target & target) { return target.vocab().bos(); })
        .def_property_readonly("eos", [](const Target & target) { return target.vocab().eos(); })
        .def_property_readonly("n_ctx", &Target::n_ctx)
        .def_property_readonly("n_ctx_train", &Target::n_ctx_train)
        .def_property_readonly("n_batch", &Target::n_batch)
        .def_property_readonly("n_threads", &Target::n_threads)
        .def_property_readonly("description", &Target::description)
        .def_property_readonly("chat_template", &Target::chat_template)
        .def_property_readonly("memory", &Target::memory)
        .def_property_readonly("model_bytes", &Target::model_bytes);
}
