// The small trained model that is built with the project (models/needle): the tests' real checkpoint.
#pragma once

#include <filesystem>

namespace pivot::test {

// Its checkpoint folder in the build tree: config.json, model.safetensors, tokenizer.json, ...
// Every test binary that links pivot_test_support depends on its being unpacked.
std::filesystem::path embedded_model_dir();

// models/needle/needle_cases.json: prompts, expected answers and logits; models/needle/README.md explains the
// fields.
std::filesystem::path needle_cases_file();

}  // namespace pivot::test
