// Where llama.cpp's and our own messages go. DFLASH_LOG (error, warn, info, debug) decides what
// reaches stderr, by default our own warnings only; the last error lines are kept so that an exception can quote llama.cpp's reason.
// Safe from any thread.

#pragma once

#include <string>

namespace dflash {

enum class LogLevel { error = 0, warn = 1, info = 2, debug = 3 };

// Starts llama.cpp's backends and routes its log here; the first call does it, later ones return at once.
// Throws std::invalid_argument when DFLASH_LOG holds an unknown level.
void init_backend();

void log(LogLevel level, const std::string & message);

// llama.cpp's error lines on this thread since the last call, joined by "; ", then forgotten.
std::string take_errors();

}  // namespace dflash
