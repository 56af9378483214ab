#include "bindings.h"

#include "dflash/ngram_map.h"

using dflash::NgramMap;
using dflash::NgramMapOptions;
using dflash::Proposal;

namespace {

// A session may use the table on another thread without the GIL; it never waits for the GIL while it does.
std::lock_guard<std::mutex> lock(const NgramMap & map) { return std::lock_guard<std::mutex>(map.mutex()); }

}  // namespace

void bind_ngram_map(py::module_ & m) {
    py::class_<Proposal>(m, "Proposal", R"(A draft with the table's own estimate of it.

Attributes
----------
tokens : list[int]
    The proposed token ids; empty where no key is known.
probabilities : list[float]
    For each token the estimated probability that it is accepted, given that all before it were.
match_length : int
    How many tokens before the proposal are the same here and where it was seen (64 at most).)")
        .def_readonly("tokens", &Proposal::tokens)
        .def_readonly("probabilities", &Proposal::probabilities)
        .def_readonly("match_length", &Proposal::match_length)
        .def("__len__", [](const Proposal & p) { return p.tokens.size(); })
        .def("__repr__", [](const Proposal & p) {
            return "Proposal(" + std::to_string(p.tokens.size()) +
                   " tokens, match_length=" + std::to_string(p.match_length) + ")";
        });

    py::class_<NgramMap, std::shared_ptr<NgramMap>>(m, "NgramMap", R"(The ngram-map-k4v table.

Remembers, for the last tokens of a text, what followed them before: up to 4 continuations of up to `size_m`
tokens for each key of `size_n` tokens, backing off to shorter keys down to `size_n_min`. One table serves any
number of generations, turns and prompts of one tokenizer.

Parameters
----------
size_n : int
    Longest key, in tokens (1 to 255).
size_m : int
    Longest continuation, in tokens (1 to 4096).
size_n_min : int
    Shortest key, in tokens (1 to size_n).
max_tokens : int
    Tokens remembered; beyond it the older half is forgotten. About 90 bytes of memory each.

Raises
------
ValueError
    A size is out of range.)")
        .def(py::init([](int size_n, int size_m, int size_n_min, std::size_t max_tokens) {
                 return std::make_shared<NgramMap>(NgramMapOptions{size_n, size_m, size_n_min, max_tokens});
             }),
             py::arg("size_n") = 12, py::arg("size_m") = 48, py::arg("size_n_min") = 3, py::kw_only(),
             py::arg("max_tokens") = NgramMapOptions{}.max_tokens)
        .def(
            "extend",
            [](NgramMap & map, const dflash::Tokens & tokens) {
                const auto guard = lock(map);
                map.extend(tokens);
            },
            py::arg("tokens"), "Append tokens to the context and learn them. ValueError on a negative id.")
        .def(
            "truncate",
            [](NgramMap & map, std::size_t length) {
                const auto guard = lock(map);
                map.truncate(length);
            },
            py::arg("length"), "Cut the context to its first `length` tokens. What was learned stays.")
        .def(
            "propose",
            [](NgramMap & map, std::optional<int> max_tokens) {
                const auto guard = lock(map);
                return map.propose(max_tokens.value_or(map.options().size_m));
            },
            py::arg("max_tokens") = py::none(), "The continuation expected after the context: a Proposal.")
        .def(
            "accept",
            [](NgramMap & map, int n_accepted, std::optional<int> n_offered) {
                const auto guard = lock(map);
                map.accept(n_accepted, n_offered.value_or(-1));
            },
            py::arg("n_accepted"), py::arg("n_offered") = py::none(),
            "Tell how many of the first `n_offered` (default: all) proposed tokens were right.")
        .def(
            "clear",
            [](NgramMap & map) {
                const auto guard = lock(map);
                map.clear();
            },
            "Forget everything.")
        .def(
            "save",
            [](const NgramMap & map, const std::filesystem::path & path) {
                const auto guard = lock(map);
                map.save(path.string());
            },
            py::arg("path"), "Write the table to a file, whole or not at all. NgramMapError where that fails.")
        .def_static(
            "load",
            [](const std::filesystem::path & path) {
                return std::make_shared<NgramMap>(NgramMap::load(path.string()));
            },
            py::arg("path"), "Read a table. NgramMapError: missing, damaged or of another version.")
        .def("__len__", &NgramMap::size)
        .def("__bool__", [](const NgramMap &) { return true; })
        .def_property_readonly("size_n", [](const NgramMap & map) { return map.options().size_n; })
        .def_property_readonly("size_m", [](const NgramMap & map) { return map.options().size_m; })
        .def_property_readonly("size_n_min", [](const NgramMap & map) { return map.options().size_n_min; })
        .def_property_readonly("n_keys", &NgramMap::n_keys, "Keys known, over all lengths.")
        .def_property_readonly("n_learned", &NgramMap::n_corpus, "Tokens remembered.")
        .def_property_readonly("memory_bytes", &NgramMap::memory_bytes)
        .def("__repr__", [](const NgramMap & map) {
            return "NgramMap(size_n=" + std::to_string(map.options().size_n) +
                   ", size_m=" + std::to_string(map.options().size_m) +
                   ", size_n_min=" + std::to_string(map.options().size_n_min) + "): " + std::to_string(map.size()) +
                   " tokens, " + std::to_string(map.n_keys()) + " keys";
        });
}
