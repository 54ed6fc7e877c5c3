// From the spelling of --device to a back-end.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/ops.h"

namespace pivot {

// "cpu": the fastest CPU back-end of this build; "cpu-reference": the oracle; "cuda" or "cuda:N": one GPU;
// "auto": cuda where this build and this machine have it, else cpu.
// num_threads: of the CPU back-ends, 0 = one per usable core. Errors: kInvalidArgument for another word,
// kUnsupported where this build has no such back-end, kNotFound where the machine has no such device.
Result<std::shared_ptr<Backend>> make_backend(std::string_view device, int num_threads = 0);

// The words make_backend accepts in this build, for help texts: "cpu", "cpu-reference" [, "cuda"].
std::vector<std::string> device_words();

}  // namespace pivot
