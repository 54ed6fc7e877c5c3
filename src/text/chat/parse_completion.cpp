// The reference parser, read literally: the whole text is there, and every departure from the grammar is an
// error.
#include <array>
#include <optional>
#include <set>

#include "text/chat/completion_parser.h"
#include "text/chat/dsml.h"
#include "text/chat/python_json.h"

namespace pivot {
namespace {

constexpr std::string_view kBlockMark = "\n\n<｜DSML｜tool_calls";
constexpr std::string_view kValueMark = "/｜DSML｜parameter";

class StrictParser {
 public:
  explicit StrictParser(std::string_view text) : text_(text) {}

  Result<ParsedCompletion> parse(ThinkingMode mode) {
    ParsedCompletion parsed;
    if (mode == ThinkingMode::kThinking) {
      parsed.reasoning = read_until({dsml::kThinkClose, kBlockMark});
      if (stop_ != dsml::kThinkClose) return wrong("</think> at the end of the reasoning");
    }
    parsed.content = read_until({dsml::kEos, kBlockMark});
    if (stop_ == kBlockMark) {
      PIVOT_TRY_VOID(read_block(parsed));
      if (!read_until({dsml::kEos}).empty()) return wrong("nothing between the tool_calls block and the end");
    } else if (stop_ != dsml::kEos) {
      return wrong("the end-of-sentence marker");
    }
    parsed.ended = stop_ == dsml::kEos;
    if (at_ != text_.size()) return wrong("nothing after the end-of-sentence marker");
    for (const std::string_view token :
         {dsml::kBos, dsml::kEos, dsml::kThinkOpen, dsml::kThinkClose, dsml::kMarker}) {
      if (parsed.content.find(token) != std::string::npos ||
          parsed.reasoning.find(token) != std::string::npos) {
        return fail(ErrorCode::kInvalidData,
                    "completion: the special token {} stands in the content or the reasoning", token);
      }
    }
    return parsed;
  }

 private:
  tl::unexpected<Error> wrong(std::string_view wanted) const {
    return fail(ErrorCode::kInvalidData, "completion: wanted {} before byte {} of {}", wanted, at_,
                text_.size());
  }

  // The text up to the first of the marks, which stop_ then names; to the end of the text where there is
  // none.
  std::string_view read_until(std::initializer_list<std::string_view> marks) {
    std::size_t end = std::string_view::npos;
    stop_ = {};
    for (const std::string_view mark : marks) {
      const std::size_t place = text_.find(mark, at_);
      if (place < end) {
        end = place;
        stop_ = mark;
      }
    }
    const std::string_view read = text_.substr(at_, end == std::string_view::npos ? end : end - at_);
    at_ += read.size() + stop_.size();
    return read;
  }

  Result<> read_block(ParsedCompletion& parsed) {
    // A text that ends right after a tag is accepted here, as the reference does.
    while (at_ < text_.size()) {
      if (read_until({dsml::kInvokeOpen, dsml::kBlockClose}) != ">\n")
        return wrong("'>' and a newline between calls");
      if (stop_ == dsml::kBlockClose) break;
      if (stop_.empty()) return wrong("an invoke or the end of the block");
      ParsedToolCall call;
      call.id = "call_" + std::to_string(parsed.tool_calls.size());
      PIVOT_TRY_VOID(read_call(call));
      parsed.tool_calls.push_back(std::move(call));
    }
    return {};
  }

  Result<> read_call(ParsedToolCall& call) {
    const auto name = invoke_name(read_until({dsml::kParameterOpen, dsml::kInvokeClose}));
    if (!name) return wrong("an invoke line with a name");
    call.name = *name;
    call.arguments = "{";
    std::set<std::string_view> keys;
    while (stop_ == dsml::kParameterOpen) {
      const auto parameter = split_parameter(read_until({kValueMark}));
      if (!parameter) return wrong("a parameter with name, string attribute and closing tag");
      if (!keys.insert(parameter->key).second) {
        return fail(ErrorCode::kInvalidData, "completion: the parameter \"{}\" is given twice",
                    parameter->key);
      }
      if (keys.size() > 1) call.arguments += ", ";
      call.arguments += python_json::quoted(parameter->key) + ": ";
      call.arguments +=
          parameter->is_text ? python_json::quoted(parameter->value) : std::string(parameter->value);
      if (read_until({dsml::kParameterOpen, dsml::kInvokeClose}) != ">\n") {
        return wrong("'>' and a newline between parameters");
      }
    }
    call.arguments += "}";
    return {};
  }

  // `\s*name="(.*?)">\n$`, where $ also stands before a last newline.
  static std::optional<std::string_view> invoke_name(std::string_view attributes) {
    static constexpr std::string_view kOpen = "name=\"";
    static constexpr std::string_view kClose = "\">\n";
    const std::size_t from = attributes.find_first_not_of(" \t\n\r\v\f");
    if (from == std::string_view::npos || attributes.substr(from, kOpen.size()) != kOpen) return std::nullopt;
    attributes.remove_prefix(from + kOpen.size());
    for (const std::size_t behind : {std::size_t{1}, std::size_t{0}}) {
      if (attributes.size() < kClose.size() + behind || (behind == 1 && attributes.back() != '\n')) continue;
      const std::size_t end = attributes.size() - behind - kClose.size();
      if (attributes.substr(end, kClose.size()) == kClose) return attributes.substr(0, end);
    }
    return std::nullopt;
  }

  struct Parameter {
    std::string_view key;
    std::string_view value;
    bool is_text;
  };

  // ` name="(.*?)" string="(true|false)">(.*?)<$`.
  static std::optional<Parameter> split_parameter(std::string_view text) {
    static constexpr std::string_view kOpen = " name=\"";
    static constexpr std::string_view kText = "\" string=\"true\">";
    static constexpr std::string_view kJson = "\" string=\"false\">";
    if (text.substr(0, kOpen.size()) != kOpen) return std::nullopt;
    text.remove_prefix(kOpen.size());
    const std::size_t text_mark = text.find(kText);
    const std::size_t json_mark = text.find(kJson);
    const std::size_t mark = std::min(text_mark, json_mark);
    if (mark == std::string_view::npos) return std::nullopt;
    Parameter parameter{text.substr(0, mark), {}, mark == text_mark};
    std::string_view value = text.substr(mark + (parameter.is_text ? kText : kJson).size());
    if (value.size() >= 2 && value.substr(value.size() - 2) == "<\n") {
      value.remove_suffix(2);
    } else if (!value.empty() && value.back() == '<') {
      value.remove_suffix(1);
    } else {
      return std::nullopt;
    }
    parameter.value = value;
    return parameter;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string_view stop_;
};

}  // namespace

Result<ParsedCompletion> parse_completion(std::string_view text, ThinkingMode mode) {
  return StrictParser(text).parse(mode);
}

}  // namespace pivot
