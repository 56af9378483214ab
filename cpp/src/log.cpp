#include "dflash/log.h"

#ifdef GGML_BACKEND_DL
#include <dlfcn.h>

#include <filesystem>
#endif

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>

#include "ggml-backend.h"
#include "llama.h"

namespace dflash {
namespace {

std::mutex mutex;
thread_local std::string errors;          // two contexts at work on two threads each have their own
LogLevel threshold = LogLevel::error;     // for llama.cpp's messages
LogLevel own_threshold = LogLevel::warn;  // for ours, which are few
LogLevel previous = LogLevel::error;      // level of the line that GGML_LOG_LEVEL_CONT goes on with

LogLevel parse_level(const std::string & name) {
    const char * const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; ++i) {
        if (name == names[i]) {
            return static_cast<LogLevel>(i);
        }
    }
    throw std::invalid_argument("DFLASH_LOG is '" + name + "'; use error, warn, info or debug");
}

LogLevel from_ggml(ggml_log_level level) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: return LogLevel::error;
        case GGML_LOG_LEVEL_WARN: return LogLevel::warn;
        case GGML_LOG_LEVEL_INFO: return LogLevel::info;
        case GGML_LOG_LEVEL_CONT: return previous;
        default: return LogLevel::debug;
    }
}

std::string without_newline(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
        text.pop_back();
    }
    return text;
}

void on_llama_log(ggml_log_level ggml_level, const char * text, void *) {
    std::lock_guard<std::mutex> lock(mutex);
    const LogLevel level = from_ggml(ggml_level);
    previous = level;
    if (level == LogLevel::error) {
        const std::string line = without_newline(text);
        if (!line.empty()) {
            errors += (errors.empty() ? "" : "; ") + line;
        }
        // llama.cpp's errors come back as exceptions; printing them too would say everything twice.
        if (threshold == LogLevel::error) {
            return;
        }
    }
    if (level <= threshold) {
        std::fputs(text, stderr);
    }
}

}  // namespace

#ifdef GGML_BACKEND_DL

// The backends are libraries: beside this code's own file, or in bin/ beside it.
static void load_backends() {
    Dl_info here;
    if (ggml_backend_dev_count() == 0 && ::dladdr(reinterpret_cast<const void *>(&init_backend), &here)) {
        const auto folder = std::filesystem::path(here.dli_fname).parent_path();
        for (const auto & place : {folder, folder / "bin"}) {
            if (ggml_backend_dev_count() == 0) {
                ggml_backend_load_all_from_path(place.c_str());
            }
        }
    }
    if (ggml_backend_dev_count() == 0) {
        ggml_backend_load_all();
    }
}

#else

static void load_backends() {}

#endif

void init_backend() {
    static const bool started = [] {
        const char * level = std::getenv("DFLASH_LOG");
        if (level && *level) {
            threshold = own_threshold = parse_level(level);
        }
        llama_log_set(on_llama_log, nullptr);
        load_backends();
        llama_backend_init();
        return true;
    }();
    (void)started;
}

void log(LogLevel level, const std::string & message) {
    std::lock_guard<std::mutex> lock(mutex);
    if (level <= own_threshold) {
        std::fprintf(stderr, "dflash: %s\n", message.c_str());
    }
}

std::string take_errors() {
    std::lock_guard<std::mutex> lock(mutex);
    std::string taken;
    taken.swap(errors);
    return taken;
}

}  // namespace dflash
