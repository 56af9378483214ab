// What the binding files share: one function per bound class, and the GIL's rules.

#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

namespace py = pybind11;

// Long calls run without the GIL; the core never takes it except through the interrupt callback.
using release_gil = py::call_guard<py::gil_scoped_release>;

void bind_ngram_map(py::module_ & m);
void bind_gguf_file(py::module_ & m);
void bind_target(py::module_ & m);
void bind_drafter(py::module_ & m);
void bind_session(py::module_ & m);
void bind_peer(py::module_ & m);
void bind_teacher(py::module_ & m);
void bind_tools(py::module_ & m);

// True where a Python signal handler (Ctrl-C) has raised; asked at most every 50 ms. Call without the GIL.
bool python_interrupted();
