// The literal marks of the chat encoding (specification 7). U+FF5C and U+2581 are part of their spelling.
#pragma once

#include <string_view>

namespace pivot::dsml {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kMarker = "｜DSML｜";

inline constexpr std::string_view kBlockOpen = "<｜DSML｜tool_calls";
inline constexpr std::string_view kBlockClose = "</｜DSML｜tool_calls>";
inline constexpr std::string_view kInvokeOpen = "<｜DSML｜invoke";
inline constexpr std::string_view kInvokeClose = "</｜DSML｜invoke";
inline constexpr std::string_view kParameterOpen = "<｜DSML｜parameter";
inline constexpr std::string_view kParameterClose = "</｜DSML｜parameter";

}  // namespace pivot::dsml
