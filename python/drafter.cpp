#include "bindings.h"

#include <chrono>
#include <cmath>
#include <thread>

#include "dflash/drafter.h"
#include "dflash/error.h"
#include "dflash/small_model_drafter.h"

using dflash::Drafter;
using dflash::DrafterOptions;
using dflash::Lattice;
using dflash::ModelDrafter;
using dflash::Path;
using dflash::SmallModelDrafter;
using dflash::Target;
using dflash::TargetOptions;
using dflash::TokenProbability;
using dflash::WalkOptions;

// From its pass number `after_passes` on the drafter misbehaves: it dies, hangs for half a second, or computes NaN.
static void inject_fault(Drafter & drafter, const std::string & kind, int after_passes) {
    if (kind != "die" && kind != "hang" && kind != "nan") {
        throw std::invalid_argument("fault is '" + kind + "'; use die, hang or nan");
    }
    drafter.set_after_pass([kind, left = after_passes](std::vector<Lattice> & lattices) mutable {
        if (left-- > 0) {
            return;
        }
        if (kind == "die") {
            throw dflash::Error("a fault was injected");
        }
        if (kind == "hang") {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
        }
        for (Lattice & lattice : lattices) {
            if (kind == "nan") {
                const auto k = static_cast<std::size_t>(lattice.top_k());
                const std::size_t n_scores = lattice.empty() ? k : k * k;
                lattice.add_position(std::vector<dflash::Token>(k, 0), std::vector<float>(n_scores, NAN));
            }
        }
    });
}

void bind_drafter(py::module_ & m) {
    py::class_<TokenProbability>(m, "TokenProbability")
        .def_readonly("token", &TokenProbability::token)
        .def_readonly("probability", &TokenProbability::probability);

    py::class_<Path>(m, "Path")
        .def_readonly("tokens", &Path::tokens)
        .def_readonly("probabilities", &Path::probabilities)
        .def_readonly("q", &Path::q);

    py::class_<Lattice>(m, "Lattice", "Candidates and scores of one drafted block.")
        .def(py::init<dflash::Token, int>(), py::arg("anchor"), py::arg("top_k"))
        .def(
            "add_position",
            [](Lattice & lattice, dflash::Tokens candidates, std::vector<float> scores) {
                lattice.add_position(std::move(candidates), std::move(scores));
            },
            py::arg("candidates"), py::arg("scores"))
        .def("row", &Lattice::row, py::arg("position"), py::arg("predecessor"))
        .def(
            "walk",
            [](const Lattice & lattice, int first_position, int n_tokens, dflash::Token predecessor,
               float temperature, std::uint64_t seed, std::int64_t anchor_position) {
                return lattice.walk({first_position, n_tokens, predecessor, temperature, seed, anchor_position});
            },
            py::kw_only(), py::arg("first_position") = 1, py::arg("n_tokens") = WalkOptions{}.n_tokens,
            py::arg("predecessor") = -1, py::arg("temperature") = 0.0f, py::arg("seed") = 0,
            py::arg("anchor_position") = 0)
        .def("candidates", &Lattice::candidates, py::arg("position"))
        .def("scores", &Lattice::scores, py::arg("position"))
        .def_property_readonly("anchor", &Lattice::anchor)
        .def_property_readonly("top_k", &Lattice::top_k)
        .def("__len__", &Lattice::size);

    py::class_<ModelDrafter, std::shared_ptr<ModelDrafter>>(m, "ModelDrafter")
        .def_property_readonly("model_bytes", &ModelDrafter::model_bytes);

    py::class_<Drafter, ModelDrafter, std::shared_ptr<Drafter>>(m, "Drafter", "A DFlash or DFlash 2 drafter.")
        .def(py::init([](const std::string & path, std::shared_ptr<Target> target, int n_gpu_layers, int n_threads,
                         const std::string & device, bool plan_only) {
                 return std::make_shared<Drafter>(path, std::move(target),
                                                  DrafterOptions{n_gpu_layers, n_threads, plan_only, device});
             }),
             py::arg("path"), py::arg("target"), py::kw_only(), py::arg("n_gpu_layers"), py::arg("n_threads"),
             py::arg("device"), py::arg("plan_only") = false, release_gil())
        .def("lattice", &Drafter::lattice, py::arg("anchor"), py::arg("n_tokens"), release_gil())
        .def("revealed_lattices", &Drafter::revealed_lattices, py::arg("prefixes"), py::arg("n_tokens"),
             release_gil())
        .def("lattices", &Drafter::lattices, py::arg("anchors"), py::arg("n_tokens"), release_gil())
        .def(
            "block_states",
            [](Drafter & drafter, dflash::Token anchor, int n_tokens) {
                Drafter::BlockStates states = drafter.block_states(anchor, n_tokens);
                return std::make_pair(std::move(states.hidden), std::move(states.logits));
            },
            py::arg("anchor"), py::arg("n_tokens"), release_gil())
        .def("set_pace", &Drafter::set_pace, py::arg("us"))
        .def("inject_fault", &inject_fault, py::arg("kind"), py::arg("after_passes"))
        .def_static("is_drafter_file", &Drafter::is_drafter_file, py::arg("path"))
        .def_property_readonly("n_past", [](const Drafter & drafter) { return drafter.n_past(); })
        .def_property_readonly("max_tokens", &Drafter::max_tokens)
        .def_property_readonly("top_k", &Drafter::top_k)
        .def_property_readonly("has_selector", &Drafter::has_selector)
        .def_property_readonly("memory", &Drafter::memory)
        .def_property_readonly("broken", &Drafter::broken)
        .def_property_readonly("tap_layers", &Drafter::tap_layers);

    py::class_<SmallModelDrafter, ModelDrafter, std::shared_ptr<SmallModelDrafter>>(
        m, "SmallModelDrafter", "A small language model that drafts token by token.")
        .def(
            py::init([](const std::string & path, const Target & target, int n_ctx, int n_gpu_layers, int n_threads) {
                TargetOptions options;
                options.n_ctx = n_ctx;
                options.n_gpu_layers = n_gpu_layers;
                options.n_threads = n_threads;
                if (n_threads == 0) {
                    options.threadpool = target.threadpool();
                }
                return std::make_shared<SmallModelDrafter>(path, target, options);
            }),
            py::arg("path"), py::arg("target"), py::kw_only(), py::arg("n_ctx"), py::arg("n_gpu_layers"),
            py::arg("n_threads"), release_gil())
        .def("measure_us", &SmallModelDrafter::measure_us, py::arg("n_rows"), py::arg("n_repetitions"),
             release_gil());
}
