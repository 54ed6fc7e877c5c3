// What the user hands to a command: texts and token ids, from arguments, files and standard input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace pivot::cli {

// A whole file, or standard input for "-". Errors: read_file's; kInvalidArgument when empty.
Result<std::string> read_text(const std::string& path);

// A JSON list of token ids, or an object with such a list under `ids`. Every id lies in [0, vocab_size).
// Errors: kInvalidData for other JSON, kInvalidArgument for an empty list or an id outside the vocabulary,
// with its index.
Result<std::vector<TokenId>> read_ids(const std::string& path, std::int64_t vocab_size);

// Writes to standard output and flushes. Errors: kIo (a full disk, a closed pipe).
Result<> write_output(std::string_view text);

}  // namespace pivot::cli
