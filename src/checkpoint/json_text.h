// JSON texts of a checkpoint folder, parsed strictly: well formed, an object, no key twice.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace pivot {

// Parses an object; `where` names the file in messages. A key given twice is refused at any depth, because
// readers disagree on which of the two counts.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view where);

}  // namespace pivot
