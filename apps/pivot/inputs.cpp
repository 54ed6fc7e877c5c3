#include "inputs.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace pivot::cli {

Result<std::string> read_text(const std::string& path) {
  std::string text;
  if (path == "-") {
    char buffer[65536];
    while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, count);
    if (std::ferror(stdin) != 0)
      return fail(ErrorCode::kIo, "cannot read standard input: {}", std::strerror(errno));
  } else {
    PIVOT_TRY(text, read_file(path));
  }
  if (text.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{} is empty; a text is wanted",
                path == "-" ? "standard input" : path);
  }
  return text;
}

Result<std::vector<TokenId>> read_ids(const std::string& path, std::int64_t vocab_size) {
  PIVOT_TRY(const std::string text, read_text(path));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* list = &json;
  if (json.is_object() && json.contains("ids")) list = &json["ids"];
  if (!list->is_array()) {
    return fail(ErrorCode::kInvalidData,
                "{}: wanted a JSON list of token ids, or an object with such a list under \"ids\"; found {}",
                path, json.is_discarded() ? "text that is not JSON" : json.type_name());
  }
  if (list->empty()) return fail(ErrorCode::kInvalidArgument, "{}: the list of token ids is empty", path);
  std::vector<TokenId> ids;
  ids.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    const nlohmann::json& item = (*list)[i];
    if (!item.is_number_integer()) {
      return fail(ErrorCode::kInvalidData, "{}: entry {} is a {}; a token id is an integer", path, i,
                  item.type_name());
    }
    const bool representable = item.is_number_unsigned() ? item.get<std::uint64_t>() < 1ull << 31 : true;
    const std::int64_t id = representable ? item.get<std::int64_t>() : -1;
    if (id < 0 || id >= vocab_size) {
      return fail(
          ErrorCode::kInvalidArgument,
          "{}: entry {} is {}; the model's token ids are 0 to {}. Was the list made with another tokenizer?",
          path, i, item.dump(), vocab_size - 1);
    }
    ids.push_back(TokenId{static_cast<std::int32_t>(id)});
  }
  return ids;
}

Result<> write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return fail(ErrorCode::kIo, "cannot write to standard output: {}", std::strerror(errno));
  }
  return {};
}

}  // namespace pivot::cli
