// Free functions over llama.cpp's own: quantising a file, JSON schema to grammar, a chain's distribution.

#include "bindings.h"

#include <algorithm>

#include "dflash/device.h"
#include "dflash/error.h"
#include "dflash/log.h"
#include "dflash/noise.h"
#include "dflash/sampler.h"
#include "dflash/target.h"
#include "json-schema-to-grammar.h"
#include "llama-ext.h"
#include "llama.h"
#ifdef DFLASH_CUDA_KERNELS
#include "cuda/kernels.h"
#include "cuda/self_check.h"
#endif

namespace {

// (kernel, problem) for each of our CUDA kernels; nothing where this build has none, or the machine no device.
std::vector<std::pair<std::string, std::string>> check_kernels() {
    std::vector<std::pair<std::string, std::string>> results;
#ifdef DFLASH_CUDA_KERNELS
    if (dflash::cuda::n_devices() > 0) {
        for (const auto & [kernel, problem] : dflash::cuda::self_check()) {
            results.emplace_back(kernel, problem);
        }
    }
#endif
    return results;
}

llama_ftype ftype_named(const std::string & name) {
    const std::pair<const char *, llama_ftype> known[] = {
        {"f32", LLAMA_FTYPE_ALL_F32},          {"f16", LLAMA_FTYPE_MOSTLY_F16},
        {"bf16", LLAMA_FTYPE_MOSTLY_BF16},     {"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
        {"q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},     {"q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
        {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},     {"q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
        {"q4_k_m", LLAMA_FTYPE_MOSTLY_Q4_K_M}, {"q4_k_s", LLAMA_FTYPE_MOSTLY_Q4_K_S},
        {"q5_k_m", LLAMA_FTYPE_MOSTLY_Q5_K_M}, {"q6_k", LLAMA_FTYPE_MOSTLY_Q6_K},
    };
    std::string names;
    for (const auto & [known_name, ftype] : known) {
        if (name == known_name) {
            return ftype;
        }
        names += std::string(names.empty() ? "" : ", ") + known_name;
    }
    throw std::invalid_argument("unknown type '" + name + "'; use one of " + names);
}

ggml_type type_named(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        if (ggml_type_name(type) && name == ggml_type_name(type)) {
            return type;
        }
    }
    throw std::invalid_argument("unknown tensor type '" + name + "'");
}

// tensor_types: (regular expression, type) for tensors that do not take the file's.
void quantize(const std::string & source, const std::string & destination, const std::string & type, bool pure,
              int n_threads, const std::vector<std::pair<std::string, std::string>> & tensor_types) {
    dflash::init_backend();
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = ftype_named(type);
    params.allow_requantize = true;
    params.pure = pure;
    params.nthread = n_threads;
    std::vector<llama_model_tensor_override> overrides;
    for (const auto & [pattern, tensor_type] : tensor_types) {
        overrides.push_back({pattern.c_str(), type_named(tensor_type)});
    }
    overrides.push_back({nullptr, GGML_TYPE_COUNT});
    params.tt_overrides = overrides.data();
    dflash::take_errors();
    if (llama_model_quantize(source.c_str(), destination.c_str(), &params) != 0) {
        throw dflash::ModelError("cannot quantise " + source + ": " + dflash::take_errors());
    }
}

std::string grammar_of_schema(const std::string & schema) {
    try {
        return json_schema_to_grammar(common_json::parse(schema));
    } catch (const std::exception & e) {
        throw std::invalid_argument(std::string("the JSON schema is not usable: ") + e.what());
    }
}

std::vector<std::pair<dflash::Token, float>> distribution(const dflash::Target & target,
                                                          const dflash::SamplerOptions & options,
                                                          const std::vector<float> & logits) {
    if (logits.size() != static_cast<std::size_t>(target.vocab().size())) {
        throw std::invalid_argument("logits has " + std::to_string(logits.size()) + " values, the vocabulary " +
                                    std::to_string(target.vocab().size()));
    }
    dflash::Sampler sampler(target.vocab(), options);
    std::vector<std::pair<dflash::Token, float>> result;
    for (const auto & [token, probability] : sampler.distribution(logits.data())) {
        result.emplace_back(token, probability);
    }
    std::sort(result.begin(), result.end(), [](const auto & a, const auto & b) {
        return a.second > b.second || (a.second == b.second && a.first < b.first);
    });
    return result;
}

}  // namespace

void bind_tools(py::module_ & m) {
    py::class_<dflash::DeviceInfo>(m, "Device", "A device that this build can compute on.")
        .def_readonly("name", &dflash::DeviceInfo::name)
        .def_readonly("description", &dflash::DeviceInfo::description)
        .def_readonly("is_gpu", &dflash::DeviceInfo::is_gpu)
        .def_readonly("memory_free", &dflash::DeviceInfo::memory_free)
        .def_readonly("memory_total", &dflash::DeviceInfo::memory_total);
    m.def("devices", &dflash::devices);
    m.def("check_kernels", &check_kernels, release_gil());
    m.def("system_info", [] { return std::string(llama_print_system_info()); });
    m.def("quantize", &quantize, py::arg("source"), py::arg("destination"), py::arg("type"), py::arg("pure") = false,
          py::arg("n_threads") = 0, py::arg("tensor_types") = std::vector<std::pair<std::string, std::string>>{},
          release_gil());
    m.def("grammar_of_schema", &grammar_of_schema, py::arg("schema"));
    m.def("distribution", &distribution, py::arg("target"), py::arg("options"), py::arg("logits"), release_gil());
    m.def("serve_rpc", &dflash::serve_rpc, py::arg("endpoint"), py::arg("n_threads"), release_gil());
    m.def(
        "gumbel",
        [](std::uint64_t seed, std::int64_t position, dflash::Token token) {
            return dflash::GumbelNoise(seed, position)(token);
        },
        py::arg("seed"), py::arg("position"), py::arg("token"));
}
