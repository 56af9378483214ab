#include "bindings.h"

#include <pybind11/numpy.h>

#include "dflash/teacher.h"

using dflash::Answer;
using dflash::Teacher;

namespace {

template <typename T>
py::array_t<T> as_array(const std::vector<T> & values, std::size_t n_rows) {
    py::array_t<T> array({n_rows, values.size() / n_rows});
    std::copy(values.begin(), values.end(), array.mutable_data());
    return array;
}

}  // namespace

void bind_teacher(py::module_ & m) {
    py::class_<Answer>(m, "Answer", "An answer that the target wrote.")
        .def_readonly("id", &Answer::id)
        .def_readonly("tokens", &Answer::tokens)
        .def_readonly("ended", &Answer::ended)
        .def_readonly("looped", &Answer::looped);

    py::class_<Teacher>(m, "Teacher", "The target with many sequences at once, for making training data.")
        .def(py::init<std::shared_ptr<dflash::Target>, std::vector<int>>(), py::arg("target"),
             py::arg("tap_layers") = std::vector<int>{})
        .def("submit", &Teacher::submit, py::arg("id"), py::arg("prompt"), py::arg("sampling"), py::arg("max_tokens"),
             release_gil())
        .def("step", &Teacher::step, release_gil())
        .def(
            "read",
            [](Teacher & teacher, const dflash::Tokens & text, int top_k, int first_row) {
                dflash::Lesson lesson;
                {
                    py::gil_scoped_release release;
                    lesson = teacher.read(text, top_k, first_row);
                }
                const std::size_t n = text.size(), m = n - static_cast<std::size_t>(first_row);
                return py::make_tuple(as_array(lesson.features, n), as_array(lesson.top_tokens, m),
                                      as_array(lesson.top_log_probs, m));
            },
            py::arg("text"), py::arg("top_k"), py::arg("first_row") = 0,
            "features [n][taps * hidden] as bfloat16 bits; for the rows from first_row on, the likeliest next tokens "
            "[m][k] and their log probabilities.")
        .def_property_readonly("n_free", &Teacher::n_free)
        .def_property_readonly("n_active", &Teacher::n_active);
}
