// A completion's text back into reasoning, content and tool calls (specification 7.6): streaming, in pieces
// cut anywhere, with a result that does not depend on the cuts (public-faults.md B27); and the reference's
// strict reading.
//
// What the streaming parser does with text that the reference parser refuses. It never fails:
// - Reasoning without </think> stays reasoning. A tool_calls block inside reasoning is reasoning.
// - The block opener is recognised with two, one or no newlines before it; these newlines belong to the
//   block. Up to 1024 bytes of white space may stand between the tags of a block.
// - A call is committed, that is announced by kToolCallStart, when its invoke line is followed by its first
//   parameter or its end. What turns out before that not to be a block is plain content, markup included.
// - When a committed call breaks (a parameter without its attributes, a parameter named twice, text between
//   the tags) or the text ends inside it, the call stays unfinished: complete is false, no kToolCallEnd
//   comes, and its arguments are left as an open JSON text, which nobody can execute by mistake. The text
//   from the break on is content.
// - string="false" values that are not JSON are sent as JSON strings, so that the arguments of a complete
//   call always parse. (The reference inserts them verbatim.)
// - Text after the block is content; white space after it is dropped when nothing else follows. More blocks
//   may follow.
// - A block that is cut off before its first call is content; after its first call the cut-off rest, which
//   can only be markup, is dropped.
// - Text after an end-of-sentence marker is ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/chat/encode.h"

namespace pivot {

struct ParsedToolCall {
  std::string id;  // CompletionParser's id_prefix and the index of the call
  std::string name;
  std::string arguments;  // JSON text of an object when `complete`
  bool complete = true;

  bool operator==(const ParsedToolCall&) const = default;
};

struct ParsedCompletion {
  std::string reasoning;
  std::string content;
  std::vector<ParsedToolCall> tool_calls;
  bool ended = false;  // an end-of-sentence marker was seen
  // Why a block, a value or the reasoning was not read as its grammar says, as a phrase for logs; empty:
  // nothing of the kind. Always empty on what parse_completion accepts, except on cut-off texts.
  std::string malformed;

  bool operator==(const ParsedCompletion&) const = default;
};

// The reference parser on a completed text, its quirks included. kInvalidData wherever the reference raises:
// missing </think> or end-of-sentence marker, malformed block, duplicate parameter name, text after the
// block, stray special tokens in reasoning or content.
Result<ParsedCompletion> parse_completion(std::string_view text, ThinkingMode mode);

struct ParserEvent {
  enum class Kind : std::uint8_t {
    kReasoning,      // text: a piece of reasoning
    kContent,        // text: a piece of content
    kToolCallStart,  // call, id, text: the function's name
    kArguments,      // call, text: the next piece of the JSON text of the arguments
    kToolCallEnd,    // call: its arguments are complete
  };
  Kind kind;
  std::int32_t call = -1;  // index into ParsedCompletion::tool_calls
  std::string text;
  std::string id;

  bool operator==(const ParserEvent&) const = default;
};

// The pieces are bytes of UTF-8 text, cut anywhere. Events never cut a character (text that is not UTF-8
// passes through as it is). Not thread-safe; one parser per answer at a time.
class CompletionParser {
 public:
  explicit CompletionParser(ThinkingMode mode, std::string id_prefix = "call_");

  // The events that this piece allows. Text that may turn out to open a block, close a value or end the
  // reasoning is held back until the next pieces decide.
  std::vector<ParserEvent> feed(std::string_view piece);
  // The end of the text: releases what was held. Further feeds are ignored until reset.
  std::vector<ParserEvent> finish();
  // Everything so far; complete after finish().
  const ParsedCompletion& result() const { return result_; }
  // As newly made, for the next answer.
  void reset();
  void reset(ThinkingMode mode, std::string id_prefix);

 private:
  enum class State : std::uint8_t {
    kReasoning,
    kContent,
    kAfterBlock,    // like kContent, white space pending
    kBlockStart,    // after "<Mtool_calls"
    kBetweenCalls,  // after "</Minvoke"
    kInvoke,        // after "<Minvoke": its attributes, up to the first tag inside
    kParameter,     // after "<Mparameter": its attributes
    kStringValue,
    kJsonValue,
    kAfterValue,  // after "</Mparameter"
    kEnded,
  };

  // Each handles the buffer in its state and returns false when more text is needed.
  bool step();
  bool step_text(ParserEvent::Kind kind);
  bool step_after_block();
  bool step_tags();
  bool step_invoke();
  bool step_parameter();
  bool step_string_value();
  bool step_json_value();

  void emit(ParserEvent::Kind kind, std::string_view text);
  void emit_arguments(std::string_view json);
  void begin_parameter(std::string_view key);
  void end_call();
  void take(std::size_t count);          // drops bytes of the buffer that nothing can ask back
  void take_to_raw(std::size_t count);   // moves them to raw_, from where `broken` gives them back
  bool broken(std::string_view reason);  // the block is none, or no longer one: back to content

  ThinkingMode mode_;
  std::string id_prefix_;
  State state_ = State::kContent;
  std::string buffer_;                       // text not yet decided
  std::size_t scanned_ = 0;                  // no marker starts before this offset of buffer_
  std::string raw_;                          // block text consumed since the last commit
  std::set<std::string, std::less<>> keys_;  // parameter names of the open call
  bool call_open_ = false;
  bool block_has_call_ = false;
  ParsedCompletion result_;
  std::vector<ParserEvent> events_;
};

}  // namespace pivot
