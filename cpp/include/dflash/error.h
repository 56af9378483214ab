// The exceptions that the core throws. Each one carries a message that names the offending value and, where
// there is one, the remedy. Bad option values are std::invalid_argument (ValueError in Python).

#pragma once

#include <stdexcept>
#include <string>

namespace dflash {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A model file that is missing, damaged, or not a language model; a model that computes no finite logits.
struct ModelError : Error {
    using Error::Error;
};

// A drafter that is sound but belongs to another target.
struct IncompatibleDrafterError : Error {
    using Error::Error;
};

// More tokens than the context holds.
struct ContextOverflowError : Error {
    using Error::Error;
};

// A k4v table file that is damaged, of another version, or of another tokenizer.
struct NgramMapError : Error {
    using Error::Error;
};

// A second thread entered an object that serves one at a time.
struct BusyError : Error {
    using Error::Error;
};

// The caller's interrupt callback asked to stop; the object stays usable.
struct Interrupted : Error {
    using Error::Error;
};

}  // namespace dflash
