// Worker, drafted blocks, outcomes, and the speculator over a drafter made of arithmetic: no model, real threads.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"
#include "dflash/cost_model.h"
#include "dflash/drafted_blocks.h"
#include "dflash/error.h"
#include "dflash/outcomes.h"
#include "dflash/slot.h"
#include "dflash/speculator.h"
#include "dflash/worker.h"

using namespace dflash;

namespace {

// A text that counts upwards: after t comes t + 1.
Tokens counting(int n, Token from = 100) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) {
        tokens.push_back(from + i);
    }
    return tokens;
}

// Candidates t + 1 .. t + 4 at each position; the sure one is the first.
Lattice lattice_after(Token last_known, int position_of_it, Token anchor, int n_tokens) {
    Lattice lattice(anchor, 4);
    for (int position = 1; position <= n_tokens; ++position) {
        std::vector<Token> candidates;
        std::vector<float> row;
        for (int i = 0; i < 4; ++i) {
            candidates.push_back(last_known + (position - position_of_it) + i);
            row.push_back(i == 0 ? 4.0f : 2.0f - 0.5f * static_cast<float>(i));
        }
        std::vector<float> scores;
        for (int predecessor = 0; predecessor < (position == 1 ? 1 : 4); ++predecessor) {
            scores.insert(scores.end(), row.begin(), row.end());
        }
        lattice.add_position(candidates, scores);
    }
    return lattice;
}

// Drafts that counting goes on from the last token it knows.
class CountingDrafter : public BlockDrafter {
public:
    void absorb(int n_rows) override { n_past_ += n_rows; }
    // Features are the row's own position: each must come once, in order.
    void absorb_rows(const float * features, int n_rows) override {
        for (int i = 0; i < n_rows; ++i) {
            const auto position = static_cast<float>(n_past_ + i);
            CHECK(features[i] == position || (n_cut > 0 && features[i] == position + static_cast<float>(n_cut)));
        }
        n_past_ += n_rows;
    }
    void skip_to(int n_tokens) override {
        skipped += n_tokens - n_past_;
        n_past_ = n_tokens;
    }
    void truncate(int n_tokens) override { n_past_ = std::min(n_past_, n_tokens); }
    void cut_out(int from, int n_tokens) override {
        CHECK(from + n_tokens <= n_past_);
        n_past_ -= n_tokens;
        n_cut = n_tokens;
    }
    int n_past() const override { return n_past_; }
    std::uint64_t model_bytes() const override { return 1; }
    int max_tokens() const override { return 11; }

    std::vector<Lattice> revealed_lattices(const std::vector<Tokens> & prefixes, int n_tokens) override {
        CHECK(anchor_position < 0 || n_past_ == anchor_position);
        CHECK(!inside_.exchange(true));  // never entered twice
        ++passes;
        if (after_pass) {
            try {
                after_pass();
            } catch (...) {
                inside_ = false;
                throw;
            }
        }
        std::vector<Lattice> result;
        for (const Tokens & prefix : prefixes) {
            const int revealed = static_cast<int>(prefix.size()) - 1;
            result.push_back(lattice_after(prefix.back(), revealed, prefix.front(), n_tokens));
        }
        inside_ = false;
        return broken ? std::vector<Lattice>() : result;
    }

    int anchor_position = -1;  // where the next pass must begin; -1: anywhere
    std::function<void()> after_pass;
    std::atomic<bool> broken{false};
    std::atomic<int> passes{0};
    int skipped = 0;
    int n_cut = 0;  // the last time

private:
    std::atomic<bool> inside_{false};
    int n_past_ = 0;
};

struct Run {
    Tokens text;
    int steps = 0;
    std::array<int, n_sources> by_source{};
    AheadStats ahead;
};

// Lets a speculator write n tokens; the target counts, but skips one now and then.
Run write(Speculator & speculator, int n, double target_ms = 0.0, int skip_every = 0, int prompt = 8) {
    Run run;
    run.text = counting(prompt);
    speculator.begin(run.text);
    speculator.absorb(prompt - 1);
    const SamplerOptions greedy;
    while (static_cast<int>(run.text.size()) < prompt + n) {
        const Draft draft = speculator.propose(run.text, 20, greedy, false);
        const bool beside = speculator.launch(run.text, draft, greedy, false);
        const auto start = std::chrono::steady_clock::now();
        if (target_ms > 0.0) {
            std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(target_ms));
        }
        int accepted = 0;
        const auto next = [&] {
            const bool skips = skip_every > 0 && run.text.size() % static_cast<std::size_t>(skip_every) == 0;
            return run.text.back() + (skips ? 2 : 1);
        };
        const int before = static_cast<int>(run.text.size());
        while (accepted < static_cast<int>(draft.tokens.size()) &&
               draft.tokens[static_cast<std::size_t>(accepted)] == next()) {
            run.text.push_back(next());
            ++accepted;
        }
        run.text.push_back(next());
        const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
        speculator.land();
        speculator.absorb(static_cast<int>(run.text.size()) - before);
        speculator.learn(draft, accepted, run.text, us, beside);
        ++run.steps;
        ++run.by_source[static_cast<std::size_t>(draft.source)];
    }
    run.ahead = speculator.ahead_stats();
    return run;
}

int times(const Run & run, Source source) { return run.by_source[static_cast<std::size_t>(source)]; }

}  // namespace

TEST(worker_does_jobs_one_after_the_other) {
    Worker worker;
    int sum = 0;
    for (int i = 0; i < 1000; ++i) {
        worker.start([&sum, i] { sum += i; });
        CHECK(worker.in_flight());
        worker.wait();
        CHECK(!worker.in_flight());
    }
    worker.wait();  // nothing in flight: at once
    CHECK(sum == 999 * 1000 / 2);
}

TEST(worker_hands_exceptions_over_and_goes_on) {
    Worker worker;
    worker.start([] { throw Error("inside"); });
    CHECK_THROWS(Error, worker.wait());
    bool ran = false;
    worker.start([&ran] { ran = true; });
    CHECK_THROWS(std::logic_error, worker.start([] {}));
    worker.wait();
    CHECK(ran);
}

TEST(worker_ends_with_a_job_in_flight) {
    std::atomic<bool> ran{false};
    {
        Worker worker;
        worker.start([&ran] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            ran = true;
        });
    }
    CHECK(ran);
    {
        const Worker never_used;
    }
}

TEST(blocks_are_of_use_where_what_they_know_came_true) {
    const Tokens text = counting(10);
    const DraftedBlock base{7, {107}, lattice_after(107, 0, 107, 5)};
    const DraftedBlock guessed{7, {107, 108, 109}, lattice_after(109, 2, 107, 5)};
    const DraftedBlock wrong{7, {107, 108, 55}, lattice_after(55, 2, 107, 5)};
    const DraftedBlock fresh{9, {109}, lattice_after(109, 0, 109, 5)};
    const DraftedBlock used_up{3, {103}, lattice_after(103, 0, 103, 5)};
    CHECK(base.first_position(text) == 3);
    CHECK(guessed.first_position(text) == 3);
    CHECK(wrong.first_position(text) == 0);
    CHECK(fresh.first_position(text) == 1);
    CHECK(used_up.first_position(text) == 0);
    CHECK(base.source(10) == Source::continued);
    CHECK(guessed.source(10) == Source::ahead);
    CHECK(fresh.source(10) == Source::drafter);

    DraftedBlocks blocks;
    CHECK(blocks.best(text) == nullptr);
    blocks.add({base, wrong});
    CHECK(blocks.best(text)->prefix == base.prefix);
    blocks.add({guessed});  // the same anchor: the others stay
    CHECK(blocks.best(text)->prefix == guessed.prefix);
    CHECK(blocks.best(counting(8))->prefix == base.prefix);
    CHECK(blocks.base(7) != nullptr);
    CHECK(blocks.base(9) == nullptr);
    blocks.add({fresh});
    CHECK(blocks.best(text)->prefix == fresh.prefix);
    CHECK(blocks.base(9) != nullptr);
    CHECK(blocks.best(counting(8)) == nullptr);
}

TEST(outcomes_are_ranked_by_the_walk_that_they_are) {
    const Lattice lattice = lattice_after(100, 0, 100, 5);
    const std::vector<Outcome> all = likely_outcomes(lattice, {101, 102}, {}, 100, {});
    double total = 0.0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        total += all[i].probability;
        CHECK(i == 0 || all[i].probability <= all[i - 1].probability);
        CHECK(all[i].n_accepted == 2 || all[i].bonus != (all[i].n_accepted == 0 ? 101 : 102));
    }
    CHECK(std::fabs(total - 1.0) < 1e-6);
    CHECK(all.size() == 3 + 3 + 4);
    CHECK(all[0].n_accepted == 2 && all[0].bonus == 103);
    // Worked out by hand: scores 4, 1.5, 1, 0.5.
    const double e = std::exp(4.0) + std::exp(1.5) + std::exp(1.0) + std::exp(0.5);
    CHECK(std::fabs(all[0].probability - std::pow(std::exp(4.0) / e, 3)) < 1e-6);
    CHECK(likely_outcomes(lattice, {101, 102}, {}, 2, {}).size() == 2);
}

TEST(outcomes_of_another_sources_draft_follow_its_own_estimate) {
    const Lattice lattice = lattice_after(100, 0, 100, 5);
    const std::vector<Outcome> outcomes = likely_outcomes(lattice, {7}, {0.9f}, 100, {});
    double accepted = 0.0;
    for (const Outcome & outcome : outcomes) {
        accepted += outcome.n_accepted == 1 ? outcome.probability : 0.0;
    }
    CHECK(std::fabs(accepted - 0.9) < 1e-6);
    // Where the lattice ends nothing can be told.
    for (const Outcome & outcome : likely_outcomes(lattice_after(100, 0, 100, 1), {101, 102}, {}, 100, {})) {
        CHECK(outcome.n_accepted == 0);
    }
}

TEST(cost_curves_come_back_from_their_file_under_their_key) {
    const std::string path = "/tmp/dflash-test-" + std::to_string(::getpid()) + ".cost";
    CostCurves curves;
    curves.at(100).observe(1, 10.0);
    curves.at(100).observe(4, 16.0);
    CHECK(curves.at(3000).verify_us(4) == 16.0);  // never measured: as the nearest
    curves.at(3000).observe(1, 20.0);
    CostModel drafts;
    drafts.observe(5, 3.0);
    curves.save(path, "key", {{drafts}, {1.5, 2.5}});

    CostCurves found;
    CostCurves::Others others;
    CHECK(!found.load(path, "other key", others));
    CHECK(!found.measured());
    CHECK(found.load(path, "key", others));
    CHECK(found.at(100).verify_us(4) == 16.0);
    CHECK(std::fabs(found.at(3000).verify_us(1) - curves.at(3000).verify_us(1)) < 1e-9);
    CHECK(others.numbers == std::vector<double>({1.5, 2.5}));
    CHECK(others.models.at(0).verify_us(5) == 3.0);

    std::string bytes;
    {
        std::ifstream in(path, std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    for (const std::size_t at : {std::size_t(0), bytes.size() / 2, bytes.size() - 1}) {
        std::string damaged = bytes;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        std::ofstream(path, std::ios::binary) << damaged;
        CHECK(!found.load(path, "key", others));
    }
    std::ofstream(path, std::ios::binary) << bytes.substr(0, 20);
    CHECK(!found.load(path, "key", others));
    std::remove(path.c_str());
    CHECK(!found.load(path, "key", others));
}

TEST(drafting_ahead_needs_no_fresh_draft_after_the_first) {
    auto drafter = std::make_shared<CountingDrafter>();
    Speculator speculator(nullptr, drafter, {3, Ahead::on, 4});
    const Run run = write(speculator, 200);
    CHECK(times(run, Source::drafter) == 1);
    CHECK(run.steps <= 52);  // all accepted: four tokens a step
    CHECK(times(run, Source::ahead) > 40);
    CHECK(run.ahead.n_launched == run.steps);
    CHECK(run.ahead.n_hits > 40);
    CHECK(run.text == counting(8 + 200 + static_cast<int>(run.text.size()) - 208));
}

TEST(the_tables_continuation_is_spliced_behind_the_drafters_tokens) {
    auto drafter = std::make_shared<CountingDrafter>();
    auto table = std::make_shared<NgramMap>(NgramMapOptions{});
    Speculator speculator(table, drafter, {4, Ahead::off, 4});
    speculator.calibrate([](int, bool) { return 1e3; }, 60, 8);  // rows are free: the more the better
    // 105 .. 130 stood here before, then something else.
    Tokens text;
    for (Token t = 105; t <= 130; ++t) {
        text.push_back(t);
    }
    text.insert(text.end(), {7, 8, 9, 103});
    speculator.begin(text);
    speculator.absorb(static_cast<int>(text.size()) - 1);
    const Draft draft = speculator.propose(text, 20, {}, false);
    CHECK(draft.source == Source::drafter);
    CHECK(draft.tokens.size() > 10);
    CHECK(draft.n_spliced == static_cast<int>(draft.tokens.size()) - 4);
    CHECK(draft.acceptance.size() == draft.tokens.size());
    for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
        CHECK(draft.tokens[i] == 104 + static_cast<Token>(i));
    }
    CHECK(speculator.propose(text, 20, {}, true).n_spliced == 0);  // rejection sampling
}

TEST(ahead_off_drafts_afresh_for_each_step) {
    auto drafter = std::make_shared<CountingDrafter>();
    Speculator speculator(nullptr, drafter, {3, Ahead::off, 4});
    const Run run = write(speculator, 100);
    CHECK(times(run, Source::drafter) == run.steps);
    CHECK(drafter->passes == run.steps);
    CHECK(run.ahead.n_launched == 0);
}

TEST(an_outcome_that_nobody_drafted_for_is_continued) {
    auto drafter = std::make_shared<CountingDrafter>();
    Speculator speculator(nullptr, drafter, {3, Ahead::on, 1});
    const Run run = write(speculator, 200, 0.0, 5);
    CHECK(times(run, Source::drafter) <= 2);
    CHECK(times(run, Source::continued) > 10);
}

TEST(automatic_drafts_ahead_where_waiting_costs) {
    auto drafter = std::make_shared<CountingDrafter>();
    drafter->after_pass = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    Speculator speculator(nullptr, drafter, {});
    speculator.calibrate(
        [](int, bool) {
            std::this_thread::sleep_for(std::chrono::milliseconds(8));
            return 8e3;
        },
        12, 8);
    const Run run = write(speculator, 400, 8.0);
    CHECK(run.ahead.n_launched > run.steps / 2);
    CHECK(times(run, Source::ahead) + times(run, Source::continued) > run.steps / 2);
}

TEST(automatic_drafts_in_turn_where_the_two_disturb_each_other) {
    auto drafter = std::make_shared<CountingDrafter>();
    Speculator speculator(nullptr, drafter, {});
    speculator.calibrate([](int, bool beside) { return beside ? 40e3 : 8e3; }, 12, 8);
    const Run run = write(speculator, 200, 2.0);
    CHECK(run.ahead.n_launched == 0);
    CHECK(times(run, Source::drafter) + times(run, Source::continued) > run.steps / 2);
}

TEST(automatic_leaves_a_drafter_alone_that_is_never_right) {
    auto drafter = std::make_shared<CountingDrafter>();
    Speculator speculator(nullptr, drafter, {});
    speculator.calibrate([](int n_rows, bool) { return 2e3 * n_rows; }, 12, 8);
    const Run run = write(speculator, 400, 2.0, 1);  // the target skips every token
    CHECK(times(run, Source::none) > run.steps * 9 / 10);
}

TEST(a_drafter_that_dies_costs_speed_alone) {
    for (const Ahead ahead : {Ahead::off, Ahead::on}) {
        auto drafter = std::make_shared<CountingDrafter>();
        drafter->after_pass = [&passes = drafter->passes] {
            if (passes > 5) {
                throw Error("dead");
            }
        };
        Speculator speculator(nullptr, drafter, {3, ahead, 4});
        const Run run = write(speculator, 100);
        CHECK(run.text.size() >= 108);
        CHECK(!speculator.has_drafter());
        CHECK(times(run, Source::none) > 50);
    }
}

TEST(a_drafter_that_breaks_or_hangs_costs_speed_alone) {
    auto drafter = std::make_shared<CountingDrafter>();
    drafter->after_pass = [drafter = drafter.get()] { drafter->broken = drafter->passes > 5; };
    Speculator speculator(nullptr, drafter, {3, Ahead::on, 4});
    CHECK(write(speculator, 100).text.size() >= 108);
    CHECK(!speculator.has_drafter());

    auto slow = std::make_shared<CountingDrafter>();
    slow->after_pass = [slow = slow.get()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(slow->passes > 60 ? 30 : 0));
    };
    Speculator other(nullptr, slow, {});
    other.calibrate([](int, bool) { return 300.0; }, 12, 8);
    const Run run = write(other, 1000, 0.3);
    CHECK(run.text.size() >= 1008);
    CHECK(times(run, Source::none) > 200);  // dropped once it was seen to be slow
}

namespace {

// A server in small: prefills a prompt, then verifies what a slot drafts, the target counting.
struct SmallServer {
    explicit SmallServer(Ahead ahead, std::shared_ptr<NgramMap> library = nullptr)
        : drafter(std::make_shared<CountingDrafter>()),
          slot(library ? std::make_shared<NgramMap>() : nullptr, drafter, {3, ahead, 4}, 1, library) {}

    void pass(int position, int n_rows) {
        std::vector<float> features;
        for (int i = 0; i < n_rows; ++i) {
            features.push_back(static_cast<float>(position + i));
        }
        slot.rows(position, n_rows, features.data());
    }
    void prefill(int from, int to) {
        for (int position = from; position < to; position += 4) {
            const int n = std::min(4, to - position);
            pass(position, n);
        }
    }
    Draft draft(const Tokens & text) {
        slot.land(now_us());
        drafter->anchor_position = static_cast<int>(text.size()) - 1;
        return slot.draft(text, 8, {}, false);
    }
    void verify(Tokens & text, const Draft & draft) {
        pass(static_cast<int>(text.size()) - 1, 1 + static_cast<int>(draft.tokens.size()));
        for (const Token token : draft.tokens) {
            if (token != text.back() + 1) {
                break;
            }
            text.push_back(token);
        }
        text.push_back(text.back() + 1);
    }
    void generate(Tokens & text, int n) {
        const std::size_t end = text.size() + static_cast<std::size_t>(n);
        while (text.size() < end) {
            const Draft offered = draft(text);
            slot.launch();
            verify(text, offered);
        }
    }

    std::shared_ptr<CountingDrafter> drafter;
    Slot slot;
};

}  // namespace

TEST(a_slot_follows_a_text_that_somebody_else_decodes) {
    for (const Ahead ahead : {Ahead::off, Ahead::on}) {
        SmallServer server(ahead);
        Tokens text = counting(10);
        server.prefill(0, 9);
        server.generate(text, 40);
        CHECK(text.size() >= 50);
        CHECK(server.drafter->skipped == 0);
        const Stats & stats = server.slot.stats();
        CHECK(stats.n_verifications <= 12);
        CHECK(stats.n_committed >= 3 * stats.n_verifications);
        CHECK((stats.ahead.n_hits > 5) == (ahead == Ahead::on));
    }
}

TEST(a_slot_survives_what_a_server_does_in_between) {
    SmallServer server(Ahead::on);
    Tokens text = counting(10);
    server.prefill(0, 9);
    server.generate(text, 12);
    // Cancelled in mid-flight; another prompt with the same beginning: its rows begin where it parts.
    server.draft(text);
    server.slot.launch();
    Tokens other = counting(6);
    other.insert(other.end(), {900, 901, 902});
    server.prefill(6, 8);
    server.generate(other, 12);
    CHECK(server.drafter->skipped == 0);
    // A slot restored from elsewhere: the first 20 rows were never seen here.
    server.slot.clear();
    Tokens restored = counting(30);
    server.prefill(20, 29);
    server.generate(restored, 8);
    CHECK(server.drafter->skipped == 20);
    // Rows that gave no features (an image).
    server.slot.clear();
    server.slot.rows(0, 5, nullptr);
    Tokens seen = counting(12);
    server.prefill(5, 11);
    server.generate(seen, 8);
    CHECK(server.drafter->skipped == 25);
}

TEST(a_slot_follows_a_context_shift) {
    SmallServer server(Ahead::off);
    Tokens text = counting(10);
    server.prefill(0, 9);
    server.generate(text, 12);
    // Tokens [4, 8) go, what followed them moves up, and the server goes on without reading anything again.
    const int before = server.drafter->n_past();
    text.erase(text.begin() + 4, text.begin() + 8);
    server.generate(text, 12);
    CHECK(server.drafter->n_cut == 4);
    CHECK(server.drafter->skipped == 0);
    CHECK(server.drafter->n_past() > before);
    CHECK(server.drafter->n_past() <= static_cast<int>(text.size()));
}

TEST(slots_share_the_texts_that_are_done_with) {
    auto library = std::make_shared<NgramMap>();
    SpeculatorOptions options;
    options.ahead = Ahead::off;
    Tokens text;
    for (int i = 0; i < 40; ++i) {
        text.push_back(100 + 7 * i % 31);
    }
    Slot first(std::make_shared<NgramMap>(), nullptr, options, 0, library);
    first.draft(text, 8, {}, false);
    Slot second(std::make_shared<NgramMap>(), nullptr, options, 0, library);
    const Tokens beginning(text.begin() + 2, text.begin() + 20);
    CHECK(second.draft(beginning, 4, {}, false).tokens.empty());
    first.clear();
    second.clear();
    const Draft draft = second.draft(beginning, 4, {}, false);
    CHECK(draft.tokens == Tokens(text.begin() + 20, text.begin() + 20 + static_cast<int>(draft.tokens.size())));
    CHECK(!draft.tokens.empty());
}

TEST(slots_survive_random_requests_side_by_side) {
    std::mt19937 random(7);
    const auto draw = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto library = std::make_shared<NgramMap>();
    const auto turn = std::make_shared<std::mutex>();
    struct Client {
        std::unique_ptr<SmallServer> server;
        Tokens text;  // empty: no request
        Tokens kept;  // what the server's cache holds
        Draft draft;
    };
    std::vector<Client> clients(4);
    for (Client & client : clients) {
        client.server = std::make_unique<SmallServer>(Ahead::on, library);
        client.server->slot.speculator().take_turns(turn);
    }
    long n_tokens = 0;
    for (int i = 0; i < 400; ++i) {
        for (Client & client : clients) {
            if (client.text.empty()) {
                // A prompt that shares the beginning of what is cached, or nothing.
                const int shared = client.kept.empty() ? 0 : draw(static_cast<int>(client.kept.size()));
                client.text.assign(client.kept.begin(), client.kept.begin() + shared);
                const Tokens more = counting(2 + draw(12), 1000 * (1 + draw(3)));
                client.text.insert(client.text.end(), more.begin(), more.end());
                client.server->prefill(shared, static_cast<int>(client.text.size()) - 1);
                client.server->slot.begin();
            } else if (client.text.size() > 60 && draw(2) == 0) {
                client.text.erase(client.text.begin() + 2, client.text.begin() + 30);  // a context shift
            }
            client.draft = client.server->draft(client.text);
        }
        for (Client & client : clients) {
            client.server->slot.launch();
        }
        for (Client & client : clients) {
            const std::size_t before = client.text.size();
            const Token last = client.text.back();
            if (draw(20) > 0) {
                client.server->verify(client.text, client.draft);
                CHECK(client.text.back() - last == static_cast<Token>(client.text.size() - before));
                n_tokens += static_cast<long>(client.text.size() - before);
                CHECK(client.server->slot.stats().n_committed > 0);
            }
            if (draw(16) == 0) {  // done, or cancelled
                client.kept.assign(client.text.begin(), client.text.end() - 1);
                client.text.clear();
                if (draw(4) == 0) {
                    client.server->slot.clear();
                    client.kept.clear();
                }
            }
        }
    }
    CHECK(n_tokens > 3000);
    CHECK(library->n_corpus() > 0);
}

TEST(bad_options_are_refused) {
    CHECK_THROWS(std::invalid_argument, Speculator(nullptr, nullptr, {-1}));
    CHECK_THROWS(std::invalid_argument, Speculator(nullptr, nullptr, {64}));
    CHECK_THROWS(std::invalid_argument, Speculator(nullptr, nullptr, {0, Ahead::on}));
    CHECK_THROWS(std::invalid_argument, Speculator(nullptr, nullptr, {0, Ahead::off, 0}));
    CHECK_THROWS(std::invalid_argument, ahead_of("maybe"));
    CHECK(ahead_of("auto") == Ahead::automatic);
}

int main() { return check::run(); }
