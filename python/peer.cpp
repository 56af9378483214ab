#include "bindings.h"

#include "dflash/peer.h"

using dflash::MemoryUse;
using dflash::Peer;
using dflash::PeerOptions;
using dflash::Stats;
using dflash::Target;

void bind_peer(py::module_ & m) {
    py::class_<Peer>(m, "Peer", "llama.cpp's own speculative decoding, on a target's weights.")
        .def(py::init([](std::shared_ptr<Target> target, const std::string & types, const std::string & drafter,
                         int width, int n_gpu_layers) {
                 PeerOptions options{types, drafter, width, n_gpu_layers, python_interrupted};
                 return std::make_unique<Peer>(std::move(target), options);
             }),
             py::arg("target"), py::kw_only(), py::arg("types"), py::arg("drafter"), py::arg("width"),
             py::arg("n_gpu_layers"), release_gil())
        .def("generate", &Peer::generate, py::arg("prompt"), py::arg("max_tokens"), py::arg("grammar"), release_gil())
        .def("reset", &Peer::reset, release_gil())
        .def_property_readonly("stats", [](const Peer & peer) { return Stats(peer.stats()); })
        .def_property_readonly("memory", &Peer::memory);
}
