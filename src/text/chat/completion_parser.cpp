#include "text/chat/completion_parser.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "text/chat/dsml.h"
#include "text/chat/python_json.h"

namespace pivot {
namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";
// More white space than this between two tags is no longer layout; the limit also bounds the rescans of a
// stream that brings nothing but newlines.
constexpr std::size_t kMaxGapBytes = 1024;

// Length of the longest end of `text` that is a proper beginning of `marker`.
std::size_t open_suffix(std::string_view text, std::string_view marker) {
  for (std::size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == marker.substr(0, length)) return length;
  }
  return 0;
}

std::size_t open_suffix(std::string_view text, std::span<const std::string_view> markers) {
  std::size_t length = 0;
  for (const std::string_view marker : markers) length = std::max(length, open_suffix(text, marker));
  return length;
}

// Bytes at the end of `text` that begin a UTF-8 character whose rest is missing: 0 to 3.
std::size_t unfinished_character(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

bool is_strict_json(std::string_view text) {
  auto value = python_json::parse(text);
  if (!value) return false;
  // NaN and the infinities are Python's, not JSON's.
  const auto check = [](const auto& self, const python_json::Value& v) -> bool {
    if (v.is(python_json::Value::Kind::kFloat) && (v.text.back() == 'N' || v.text.back() == 'y'))
      return false;
    return std::all_of(v.items.begin(), v.items.end(), [&](const auto& item) { return self(self, item); }) &&
           std::all_of(v.members.begin(), v.members.end(),
                       [&](const auto& member) { return self(self, member.value); });
  };
  return check(check, *value);
}

}  // namespace

CompletionParser::CompletionParser(ThinkingMode mode, std::string id_prefix) {
  reset(mode, std::move(id_prefix));
}

void CompletionParser::reset(ThinkingMode mode, std::string id_prefix) {
  mode_ = mode;
  id_prefix_ = std::move(id_prefix);
  reset();
}

void CompletionParser::reset() {
  state_ = mode_ == ThinkingMode::kThinking ? State::kReasoning : State::kContent;
  buffer_.clear();
  scanned_ = 0;
  raw_.clear();
  keys_.clear();
  call_open_ = false;
  block_has_call_ = false;
  result_ = {};
  events_.clear();
}

std::vector<ParserEvent> CompletionParser::feed(std::string_view piece) {
  if (state_ != State::kEnded) {
    buffer_ += piece;
    while (state_ != State::kEnded && step()) {
    }
  }
  return std::exchange(events_, {});
}

std::vector<ParserEvent> CompletionParser::finish() {
  const auto note = [&](std::string_view reason) {
    if (result_.malformed.empty()) result_.malformed = reason;
  };
  if (call_open_) {
    // The unfinished end of a value may be half a closing tag: it goes, with the call that nobody can
    // execute.
    note("the text ends inside a tool call");
    result_.tool_calls.back().complete = false;
  } else {
    switch (state_) {
      case State::kReasoning:
        note("the text ends inside the reasoning");
        emit(ParserEvent::Kind::kReasoning, buffer_);
        break;
      case State::kContent:
        emit(ParserEvent::Kind::kContent, buffer_);
        break;
      case State::kAfterBlock:
        if (buffer_.find_first_not_of(kSpace) != std::string::npos)
          emit(ParserEvent::Kind::kContent, buffer_);
        break;
      case State::kEnded:
        break;
      default:
        // Inside a block, between calls or before the first one.
        note("the text ends inside the tool_calls block");
        // Once the block had a call, what is left of it can only be markup.
        if (!block_has_call_) emit(ParserEvent::Kind::kContent, raw_ + buffer_);
    }
  }
  buffer_.clear();
  raw_.clear();
  call_open_ = false;
  state_ = State::kEnded;
  return std::exchange(events_, {});
}

bool CompletionParser::step() {
  switch (state_) {
    case State::kReasoning:
      return step_text(ParserEvent::Kind::kReasoning);
    case State::kContent:
      return step_text(ParserEvent::Kind::kContent);
    case State::kAfterBlock:
      return step_after_block();
    case State::kBlockStart:
    case State::kBetweenCalls:
    case State::kAfterValue:
      return step_tags();
    case State::kInvoke:
      return step_invoke();
    case State::kParameter:
      return step_parameter();
    case State::kStringValue:
      return step_string_value();
    case State::kJsonValue:
      return step_json_value();
    case State::kEnded:
      return false;
  }
  return false;
}

// Reasoning up to </think>, content up to a block; either up to the end of the sentence.
bool CompletionParser::step_text(ParserEvent::Kind kind) {
  static constexpr std::array<std::string_view, 2> kReasoningMarks = {dsml::kThinkClose, dsml::kEos};
  static constexpr std::array<std::string_view, 4> kContentMarks = {
      "\n\n<｜DSML｜tool_calls", "\n<｜DSML｜tool_calls", dsml::kBlockOpen, dsml::kEos};
  const bool reasoning = kind == ParserEvent::Kind::kReasoning;
  const std::span<const std::string_view> marks = reasoning
                                                      ? std::span<const std::string_view>(kReasoningMarks)
                                                      : std::span<const std::string_view>(kContentMarks);
  std::size_t at = std::string::npos;
  std::string_view found;
  for (const std::string_view mark : marks) {
    const std::size_t place = buffer_.find(mark);
    if (place < at) {
      at = place;
      found = mark;
    }
  }
  if (at == std::string::npos) {
    std::size_t hold = open_suffix(buffer_, marks);
    if (hold == 0) hold = unfinished_character(buffer_);
    emit(kind, std::string_view(buffer_).substr(0, buffer_.size() - hold));
    take(buffer_.size() - hold);
    return false;
  }
  emit(kind, std::string_view(buffer_).substr(0, at));
  take(at);
  if (found == dsml::kEos) {
    if (reasoning && result_.malformed.empty()) result_.malformed = "the text ends inside the reasoning";
    result_.ended = true;
    buffer_.clear();
    state_ = State::kEnded;
  } else if (reasoning) {
    take(found.size());
    state_ = State::kContent;
  } else {
    if (found != kContentMarks[0] && result_.malformed.empty()) {
      result_.malformed = "no blank line before the tool_calls block";
    }
    take_to_raw(found.size());
    block_has_call_ = false;
    state_ = State::kBlockStart;
  }
  return true;
}

// White space after a block is kept only if other text follows it; another block may come.
bool CompletionParser::step_after_block() {
  const std::size_t text = buffer_.find_first_not_of(kSpace);
  if (std::min(text, buffer_.size()) > kMaxGapBytes) {
    state_ = State::kContent;
    return true;
  }
  if (text == std::string::npos) return false;
  const std::string_view rest = std::string_view(buffer_).substr(text);
  for (const std::string_view mark : {dsml::kEos, dsml::kBlockOpen}) {
    if (rest.substr(0, mark.size()) == mark) {
      take(text);
      state_ = State::kContent;  // which reads the mark
      if ((text > 0 || mark == dsml::kBlockOpen) && result_.malformed.empty()) {
        result_.malformed = "text after the tool_calls block";
      }
      return true;
    }
    if (mark.substr(0, rest.size()) == rest) return false;
  }
  if (result_.malformed.empty()) result_.malformed = "text after the tool_calls block";
  state_ = State::kContent;
  return true;
}

// Between tags: ">" of the tag before, white space, then one of the tags that may follow.
bool CompletionParser::step_tags() {
  if (buffer_.empty()) return false;
  if (buffer_[0] != '>') return broken("wanted '>' at the end of a tag of the tool_calls block");
  const std::size_t tag = std::min(buffer_.find_first_not_of(kSpace, 1), buffer_.size());
  if (tag > kMaxGapBytes) return broken("too much white space between the tags of the tool_calls block");
  if (tag == buffer_.size()) return false;
  const std::string_view rest = std::string_view(buffer_).substr(tag);
  const bool in_call = state_ == State::kAfterValue;
  const std::array<std::pair<std::string_view, State>, 2> next = {{
      {in_call ? dsml::kParameterOpen : dsml::kInvokeOpen, in_call ? State::kParameter : State::kInvoke},
      {in_call ? dsml::kInvokeClose : dsml::kBlockClose, in_call ? State::kBetweenCalls : State::kAfterBlock},
  }};
  for (const auto& [mark, state] : next) {
    if (rest.substr(0, mark.size()) == mark) {
      take_to_raw(tag + mark.size());
      state_ = state;
      if (state == State::kBetweenCalls) end_call();
      if (state == State::kAfterBlock) raw_.clear();
      return true;
    }
    if (mark.substr(0, rest.size()) == rest) return false;
  }
  if (block_has_call_) take(1);  // the '>' belongs to a tag that was understood
  return broken("text between the tags of the tool_calls block");
}

// The attributes of an invoke run to the first tag inside it; with that tag the call is committed.
bool CompletionParser::step_invoke() {
  const std::size_t parameter = buffer_.find(dsml::kParameterOpen, scanned_);
  const std::size_t close = buffer_.find(dsml::kInvokeClose, scanned_);
  const std::size_t end = std::min(parameter, close);
  if (end == std::string::npos) {
    const std::size_t longest = std::max(dsml::kParameterOpen.size(), dsml::kInvokeClose.size());
    scanned_ = buffer_.size() < longest ? 0 : buffer_.size() - longest + 1;
    return false;
  }
  static constexpr std::string_view kOpen = "name=\"";
  static constexpr std::string_view kClose = "\">";
  std::string_view attributes = std::string_view(buffer_).substr(0, end);
  const std::size_t from = std::min(attributes.find_first_not_of(kSpace), attributes.size());
  attributes.remove_prefix(from);
  attributes = attributes.substr(0, attributes.find_last_not_of(kSpace) + 1);
  if (attributes.size() < kOpen.size() + kClose.size() || attributes.substr(0, kOpen.size()) != kOpen ||
      attributes.substr(attributes.size() - kClose.size()) != kClose) {
    return broken("an invoke without a name");
  }
  ParsedToolCall call;
  call.id = id_prefix_ + std::to_string(result_.tool_calls.size());
  call.name = attributes.substr(kOpen.size(), attributes.size() - kOpen.size() - kClose.size());
  call.complete = false;
  result_.tool_calls.push_back(std::move(call));
  call_open_ = true;
  block_has_call_ = true;
  keys_.clear();
  emit(ParserEvent::Kind::kToolCallStart, result_.tool_calls.back().name);
  events_.back().id = result_.tool_calls.back().id;
  raw_.clear();
  if (end == parameter) {
    take(end);
    take_to_raw(dsml::kParameterOpen.size());
    state_ = State::kParameter;
  } else {
    take(end + dsml::kInvokeClose.size());
    state_ = State::kBetweenCalls;
    end_call();
  }
  return true;
}

bool CompletionParser::step_parameter() {
  static constexpr std::string_view kOpen = "name=\"";
  static constexpr std::string_view kStringMark = "\" string=\"true\">";
  static constexpr std::string_view kJsonMark = "\" string=\"false\">";
  static constexpr std::string_view kCloseMark = "/｜DSML｜parameter";
  const std::size_t from = buffer_.find_first_not_of(kSpace);
  if (from == std::string::npos) return false;
  const std::string_view rest = std::string_view(buffer_).substr(from);
  if (rest.substr(0, kOpen.size()) != kOpen) {
    if (kOpen.substr(0, rest.size()) == rest) return false;
    return broken("a parameter without a name");
  }
  const std::size_t key = from + kOpen.size();
  const std::size_t start = std::max(key, scanned_);
  const std::size_t text_mark = buffer_.find(kStringMark, start);
  const std::size_t json_mark = buffer_.find(kJsonMark, start);
  const std::size_t mark = std::min(text_mark, json_mark);
  if (buffer_.find(kCloseMark, start) < mark) return broken("a parameter without a string attribute");
  if (mark == std::string::npos) {
    scanned_ = buffer_.size() < kCloseMark.size() ? 0 : buffer_.size() - kCloseMark.size() + 1;
    return false;
  }
  const std::string name = buffer_.substr(key, mark - key);
  if (!keys_.insert(name).second) return broken("a parameter named twice");
  begin_parameter(name);
  const bool is_text = mark == text_mark;
  if (is_text) emit_arguments("\"");
  take(mark + (is_text ? kStringMark : kJsonMark).size());
  raw_.clear();
  state_ = is_text ? State::kStringValue : State::kJsonValue;
  return true;
}

namespace {

// The reference ends a value at the first "/Mparameter", which must follow "<" or, by a quirk, "<" and a
// newline.
constexpr std::array<std::string_view, 3> kValueMarks = {"</｜DSML｜parameter", "<\n/｜DSML｜parameter",
                                                         "/｜DSML｜parameter"};

}  // namespace

bool CompletionParser::step_string_value() {
  const std::size_t slash = buffer_.find(kValueMarks[2]);
  std::size_t end = slash;  // of the value
  if (slash == std::string::npos) {
    const std::size_t hold = open_suffix(buffer_, kValueMarks);
    end = buffer_.size() - (hold > 0 ? hold : unfinished_character(buffer_));
  } else if (slash >= 1 && buffer_[slash - 1] == '<') {
    end = slash - 1;
  } else if (slash >= 2 && buffer_[slash - 1] == '\n' && buffer_[slash - 2] == '<') {
    end = slash - 2;
  }
  std::string escaped;
  python_json::append_escaped(escaped, std::string_view(buffer_).substr(0, end));
  emit_arguments(escaped);
  if (slash == std::string::npos) {
    take(end);
    return false;
  }
  take(end);
  if (end == slash) return broken("a parameter's value without a closing tag");
  emit_arguments("\"");
  take(slash - end + kValueMarks[2].size());
  state_ = State::kAfterValue;
  return true;
}

bool CompletionParser::step_json_value() {
  const std::size_t slash = buffer_.find(kValueMarks[2], scanned_);
  if (slash == std::string::npos) {
    const std::size_t longest = kValueMarks[2].size();
    scanned_ = buffer_.size() < longest ? 0 : buffer_.size() - longest + 1;
    return false;
  }
  std::size_t end = slash;
  if (slash >= 1 && buffer_[slash - 1] == '<') {
    end = slash - 1;
  } else if (slash >= 2 && buffer_[slash - 1] == '\n' && buffer_[slash - 2] == '<') {
    end = slash - 2;
  }
  if (end == slash) return broken("a parameter's value without a closing tag");
  const std::string value = buffer_.substr(0, end);
  if (is_strict_json(value)) {
    emit_arguments(value);
  } else {
    if (result_.malformed.empty()) result_.malformed = "a string=\"false\" value that is not JSON";
    emit_arguments(python_json::quoted(value));
  }
  take(slash + kValueMarks[2].size());
  state_ = State::kAfterValue;
  return true;
}

void CompletionParser::emit(ParserEvent::Kind kind, std::string_view text) {
  const bool is_text = kind == ParserEvent::Kind::kReasoning || kind == ParserEvent::Kind::kContent;
  if (is_text && text.empty()) return;
  if (kind == ParserEvent::Kind::kReasoning) result_.reasoning += text;
  if (kind == ParserEvent::Kind::kContent) result_.content += text;
  if (kind == ParserEvent::Kind::kArguments) result_.tool_calls.back().arguments += text;
  const auto call = is_text ? -1 : static_cast<std::int32_t>(result_.tool_calls.size()) - 1;
  const bool joins = (is_text || kind == ParserEvent::Kind::kArguments) && !events_.empty() &&
                     events_.back().kind == kind && events_.back().call == call;
  if (joins) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, call, std::string(text), {}});
  }
}

void CompletionParser::emit_arguments(std::string_view json) {
  if (!json.empty()) emit(ParserEvent::Kind::kArguments, json);
}

void CompletionParser::begin_parameter(std::string_view key) {
  emit_arguments((keys_.size() == 1 ? "{" : ", ") + python_json::quoted(key) + ": ");
}

void CompletionParser::end_call() {
  emit_arguments(keys_.empty() ? "{}" : "}");
  result_.tool_calls.back().complete = true;
  emit(ParserEvent::Kind::kToolCallEnd, {});
  call_open_ = false;
  raw_.clear();
}

void CompletionParser::take(std::size_t count) {
  buffer_.erase(0, count);
  scanned_ = 0;
}

void CompletionParser::take_to_raw(std::size_t count) {
  raw_.append(buffer_, 0, count);
  take(count);
}

bool CompletionParser::broken(std::string_view reason) {
  if (result_.malformed.empty()) result_.malformed = reason;
  call_open_ = false;
  emit(ParserEvent::Kind::kContent, raw_);
  raw_.clear();
  scanned_ = 0;
  state_ = State::kContent;
  return true;
}

}  // namespace pivot
