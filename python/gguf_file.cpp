#include "bindings.h"

#include "dflash/gguf_file.h"

using dflash::GgufArray;
using dflash::GgufFile;
using dflash::GgufTensor;
using dflash::GgufValue;

namespace {

py::object to_python(const GgufValue & value) {
    return std::visit(
        [](const auto & v) -> py::object {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_same_v<T, GgufArray>) {
                if (v.length > GgufFile::max_array_kept) {
                    return py::str("[" + std::to_string(v.length) + " elements]");
                }
                return py::cast(v.values);
            } else if constexpr (std::is_same_v<T, std::string>) {
                // Files hold arbitrary bytes; a bad character must not hide the rest.
                return py::bytes(v).attr("decode")("utf-8", "replace");
            } else {
                return py::cast(v);
            }
        },
        value);
}

}  // namespace

void bind_gguf_file(py::module_ & m) {
    py::class_<GgufTensor>(m, "GgufTensor")
        .def_readonly("name", &GgufTensor::name)
        .def_readonly("shape", &GgufTensor::shape)
        .def_readonly("type", &GgufTensor::type)
        .def_readonly("bytes", &GgufTensor::bytes);

    py::class_<GgufFile>(m, "GgufFile", "A GGUF file's header, checked. ModelError where it is damaged.")
        .def(py::init<const std::string &>(), py::arg("path"), release_gil())
        .def_property_readonly("path", &GgufFile::path)
        .def_property_readonly("file_bytes", &GgufFile::file_bytes)
        .def_property_readonly("tensor_bytes", &GgufFile::tensor_bytes)
        .def_property_readonly("architecture", &GgufFile::architecture)
        .def_property_readonly("vocab_size", &GgufFile::vocab_size)
        .def_property_readonly("tensors", &GgufFile::tensors)
        .def_property_readonly("metadata",
                               [](const GgufFile & file) {
                                   py::dict metadata;
                                   for (const auto & [key, value] : file.metadata()) {
                                       metadata[py::str(key)] = to_python(value);
                                   }
                                   return metadata;
                               })
        .def("require_language_model", &GgufFile::require_language_model,
             "ModelError unless the file is a whole causal language model.");
}
