// Runs every kernel on the device, on random inputs, against the plain references. A second or so.

#pragma once

#include <string>
#include <vector>

namespace dflash::cuda {

struct CheckResult {
    std::string kernel;
    std::string problem;  // empty where device and reference agree
};

// Needs a device (n_devices() > 0); without one every problem says so.
std::vector<CheckResult> self_check();

}  // namespace dflash::cuda
