#include "bindings.h"

#include <map>

#include "dflash/session.h"

using dflash::AheadStats;
using dflash::Event;
using dflash::GenerationOptions;
using dflash::ModelDrafter;
using dflash::NgramMap;
using dflash::SamplerOptions;
using dflash::Session;
using dflash::SourceStats;
using dflash::SpeculatorOptions;
using dflash::Stats;
using dflash::StepResult;
using dflash::Target;

void bind_session(py::module_ & m) {
    py::class_<SamplerOptions>(m, "SamplerOptions")
        .def(py::init<>())
        .def_readwrite("temperature", &SamplerOptions::temperature)
        .def_readwrite("top_k", &SamplerOptions::top_k)
        .def_readwrite("top_p", &SamplerOptions::top_p)
        .def_readwrite("min_p", &SamplerOptions::min_p)
        .def_readwrite("typical_p", &SamplerOptions::typical_p)
        .def_readwrite("repeat_penalty", &SamplerOptions::repeat_penalty)
        .def_readwrite("frequency_penalty", &SamplerOptions::frequency_penalty)
        .def_readwrite("presence_penalty", &SamplerOptions::presence_penalty)
        .def_readwrite("penalty_last_n", &SamplerOptions::penalty_last_n)
        .def_readwrite("seed", &SamplerOptions::seed)
        .def_readwrite("logit_bias", &SamplerOptions::logit_bias)
        .def_readwrite("grammar", &SamplerOptions::grammar);

    py::class_<GenerationOptions>(m, "GenerationOptions")
        .def(py::init<>())
        .def_readwrite("max_tokens", &GenerationOptions::max_tokens)
        .def_readwrite("stop", &GenerationOptions::stop)
        .def_property(
            "rejection",
            [](const GenerationOptions & o) { return o.verification == dflash::Verification::rejection; },
            [](GenerationOptions & o, bool on) {
                o.verification = on ? dflash::Verification::rejection : dflash::Verification::coupled;
            })
        .def_readwrite("sampler", &GenerationOptions::sampler);

    py::class_<StepResult>(m, "StepResult")
        .def_readonly("tokens", &StepResult::tokens)
        .def_property_readonly("text", [](const StepResult & r) { return py::bytes(r.text); })
        .def_property_readonly("finish_reason",
                               [](const StepResult & r) { return dflash::finish_reason_name(r.finish_reason); });

    py::class_<Event>(m, "Event")
        .def_property_readonly(
            "lane",
            [](const Event & e) {
                return e.lane == Event::Lane::target ? "target" : e.lane == Event::Lane::drafter ? "drafter" : "host";
            })
        .def_property_readonly("name", [](const Event & e) { return std::string(e.name); })
        .def_readonly("start_us", &Event::start_us)
        .def_readonly("end_us", &Event::end_us)
        .def_readonly("n_rows", &Event::n_rows)
        .def_readonly("n_accepted", &Event::n_accepted);

    py::class_<SourceStats>(m, "SourceStats")
        .def_readonly("n_proposals", &SourceStats::n_proposals)
        .def_readonly("n_proposed", &SourceStats::n_proposed)
        .def_readonly("n_accepted", &SourceStats::n_accepted)
        .def_readonly("offered_at", &SourceStats::offered_at)
        .def_readonly("accepted_at", &SourceStats::accepted_at)
        .def_readonly("n_steps", &SourceStats::n_steps)
        .def_readonly("expected_tokens", &SourceStats::expected_tokens)
        .def_readonly("expected_us", &SourceStats::expected_us)
        .def_readonly("tokens", &SourceStats::tokens)
        .def_readonly("us", &SourceStats::us);

    py::class_<AheadStats>(m, "AheadStats")
        .def_readonly("n_launched", &AheadStats::n_launched)
        .def_readonly("n_outcomes", &AheadStats::n_outcomes)
        .def_readonly("n_hits", &AheadStats::n_hits)
        .def_readonly("hits_at", &AheadStats::hits_at);

    py::class_<Stats>(m, "Stats")
        .def_readonly("n_prompt", &Stats::n_prompt)
        .def_readonly("n_reused", &Stats::n_reused)
        .def_readonly("n_completion", &Stats::n_completion)
        .def_readonly("n_committed", &Stats::n_committed)
        .def_readonly("prefill_us", &Stats::prefill_us)
        .def_readonly("decode_us", &Stats::decode_us)
        .def_readonly("n_verifications", &Stats::n_verifications)
        .def_property_readonly("sources",
                               [](const Stats & stats) {
                                   std::map<std::string, SourceStats> named;
                                   for (int i = 0; i < dflash::n_sources; ++i) {
                                       named[dflash::source_name(static_cast<dflash::Source>(i))] =
                                           stats.sources[static_cast<std::size_t>(i)];
                                   }
                                   return named;
                               })
        .def_readonly("ahead", &Stats::ahead)
        .def_readonly("offered_at", &Stats::offered_at)
        .def_readonly("accepted_at", &Stats::accepted_at)
        .def_readonly("timeline", &Stats::timeline)
        .def_readonly("n_events_dropped", &Stats::n_events_dropped);

    py::class_<Session>(m, "Session", "One text being written, step by step.")
        .def(
            py::init([](std::shared_ptr<Target> target, std::shared_ptr<NgramMap> ngram,
                        std::shared_ptr<ModelDrafter> drafter, int width, const std::string & ahead, int n_outcomes) {
                return std::make_unique<Session>(std::move(target), std::move(ngram), std::move(drafter),
                                                 SpeculatorOptions{width, dflash::ahead_of(ahead), n_outcomes});
            }),
            py::arg("target"), py::arg("ngram"), py::arg("drafter") = nullptr, py::arg("width") = 0,
            py::arg("ahead") = "auto", py::arg("n_outcomes") = SpeculatorOptions{}.n_outcomes)
        .def("keep_costs", &Session::keep_costs, py::arg("folder"))
        .def("begin", &Session::begin, py::arg("prompt"), py::arg("options"), release_gil())
        .def("prefill", &Session::prefill, py::arg("max_tokens"), release_gil())
        .def("step", &Session::step, release_gil())
        .def("reset", &Session::reset, release_gil())
        .def("logits", &Session::logits, py::arg("tokens"), py::arg("n_single"), release_gil())
        .def_property_readonly("finished", &Session::finished)
        .def_property_readonly("committed", &Session::committed)
        .def_property_readonly("stats", [](const Session & session) { return Stats(session.stats()); });
}
