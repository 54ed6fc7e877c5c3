#include "checkpoint/json_text.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/problems.h"

namespace pivot {

Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view where) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys_by_depth;
  std::optional<std::string> duplicate;
  auto watch_keys = [&](int depth, Event event, nlohmann::json& parsed) {
    const auto level = static_cast<std::size_t>(depth);
    if (event == Event::object_start) {
      if (keys_by_depth.size() < level + 2) keys_by_depth.resize(level + 2);
      keys_by_depth[level + 1].clear();  // keys of an object are reported one level deeper than its start
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_by_depth[level].insert(key).second && !duplicate) duplicate = key;
    }
    return true;
  };
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text, watch_keys);
  } catch (const nlohmann::json::exception& exception) {
    std::string_view what = exception.what();
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos)
      what.remove_prefix(bracket + 2);
    return fail(ErrorCode::kInvalidData, "{} is not valid JSON ({}); fetch the file again", where, what);
  }
  if (!value.is_object()) {
    return fail(ErrorCode::kInvalidData, "{} holds a JSON {}; an object was wanted", where,
                value.type_name());
  }
  if (duplicate) {
    return fail(ErrorCode::kInvalidData, "{} gives the key {} twice; remove one of them", where,
                quote_name(*duplicate));
  }
  return value;
}

}  // namespace pivot
