// The least of a test framework: CHECK prints what failed and where; run() counts and returns the exit code.

#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace check {

inline int failures = 0;

struct Case {
    const char * name;
    std::function<void()> body;
};

inline std::vector<Case> & cases() {
    static std::vector<Case> all;
    return all;
}

struct Register {
    Register(const char * name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

inline int run() {
    for (const Case & test : cases()) {
        const int before = failures;
        try {
            test.body();
        } catch (const std::exception & error) {
            std::printf("  threw: %s\n", error.what());
            ++failures;
        }
        std::printf("%s %s\n", failures == before ? "ok  " : "FAIL", test.name);
    }
    std::printf("%zu cases, %d failures\n", cases().size(), failures);
    return failures == 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                             \
    static void name();                                        \
    static const check::Register register_##name(#name, name); \
    static void name()

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            std::printf("  %s:%d: %s\n", __FILE__, __LINE__, #condition); \
            ++check::failures;                                            \
        }                                                                 \
    } while (false)

#define CHECK_THROWS(exception, expression)                                                       \
    do {                                                                                          \
        bool threw = false;                                                                       \
        try {                                                                                     \
            (void)(expression);                                                                   \
        } catch (const exception &) {                                                             \
            threw = true;                                                                         \
        }                                                                                         \
        if (!threw) {                                                                             \
            std::printf("  %s:%d: no %s from %s\n", __FILE__, __LINE__, #exception, #expression); \
            ++check::failures;                                                                    \
        }                                                                                         \
    } while (false)
