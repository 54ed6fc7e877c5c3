#include "text/chat/completion_parser.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pivot {

void PrintTo(const ParsedCompletion& parsed, std::ostream* out) {
  *out << "{reasoning \"" << parsed.reasoning << "\", content \"" << parsed.content << "\"";
  for (const auto& call : parsed.tool_calls) {
    *out << ", " << call.id << " " << call.name << " " << call.arguments
         << (call.complete ? "" : " UNFINISHED");
  }
  *out << (parsed.ended ? ", ended" : "") << ", malformed \"" << parsed.malformed << "\"}";
}

namespace {

using Kind = ParserEvent::Kind;

const std::string kEos = "<｜end▁of▁sentence｜>";
const std::string kBlock =
    "\n\n<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"read_meter\">\n"
    "<｜DSML｜parameter name=\"ids\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"note\" string=\"true\">a<b</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"stop_pump\">\n\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>";

// What a client rebuilds from the events alone, checking their order on the way.
class Client {
 public:
  void take(const std::vector<ParserEvent>& events) {
    for (const ParserEvent& event : events) {
      switch (event.kind) {
        case Kind::kReasoning:
          EXPECT_TRUE(seen_.content.empty() && seen_.tool_calls.empty());
          seen_.reasoning += event.text;
          break;
        case Kind::kContent:
          seen_.content += event.text;
          break;
        case Kind::kToolCallStart:
          EXPECT_EQ(event.call, static_cast<std::int32_t>(seen_.tool_calls.size()));
          seen_.tool_calls.push_back({event.id, event.text, "", false});
          break;
        case Kind::kArguments:
          ASSERT_EQ(event.call + 1, static_cast<std::int32_t>(seen_.tool_calls.size()));
          EXPECT_FALSE(event.text.empty());
          EXPECT_FALSE(seen_.tool_calls.back().complete);
          seen_.tool_calls.back().arguments += event.text;
          break;
        case Kind::kToolCallEnd:
          seen_.tool_calls.back().complete = true;
          break;
      }
    }
  }
  // The events must tell all that the result says.
  void expect(const ParsedCompletion& result) {
    seen_.ended = result.ended;
    seen_.malformed = result.malformed;
    EXPECT_EQ(seen_, result);
  }

 private:
  ParsedCompletion seen_;
};

ParsedCompletion parse_in_pieces(std::string_view text, ThinkingMode mode,
                                 const std::vector<std::size_t>& cuts) {
  CompletionParser parser(mode);
  Client client;
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    client.take(parser.feed(text.substr(from, cut - from)));
    from = cut;
  }
  client.take(parser.feed(text.substr(from)));
  client.take(parser.finish());
  client.expect(parser.result());
  return parser.result();
}

// Parses whole, at every cut in two, and in pieces of the sizes of B27; all must agree.
ParsedCompletion parse(std::string_view text, ThinkingMode mode) {
  const ParsedCompletion whole = parse_in_pieces(text, mode, {});
  for (std::size_t cut = 1; cut < text.size(); ++cut)
    EXPECT_EQ(parse_in_pieces(text, mode, {cut}), whole) << "cut " << cut;
  for (const std::size_t size : {1, 2, 3, 5, 7, 11, 64}) {
    std::vector<std::size_t> cuts;
    for (std::size_t at = size; at < text.size(); at += size) cuts.push_back(at);
    EXPECT_EQ(parse_in_pieces(text, mode, cuts), whole) << "pieces of " << size;
  }
  return whole;
}

ParsedCompletion chat(std::string_view text) { return parse(text, ThinkingMode::kChat); }

TEST(CompletionParserB27, GivesTheSameCallsForEveryCut) {
  const ParsedCompletion parsed = parse("Let me see.</think>Checking." + kBlock, ThinkingMode::kThinking);
  EXPECT_EQ(parsed.reasoning, "Let me see.");
  EXPECT_EQ(parsed.content, "Checking.");
  ASSERT_EQ(parsed.tool_calls.size(), 2u);
  EXPECT_EQ(parsed.tool_calls[0],
            (ParsedToolCall{"call_0", "read_meter", R"({"ids": [1, 2], "note": "a<b"})", true}));
  EXPECT_EQ(parsed.tool_calls[1], (ParsedToolCall{"call_1", "stop_pump", "{}", true}));
  EXPECT_EQ(parsed.malformed, "");
  EXPECT_FALSE(parsed.ended);
  EXPECT_TRUE(parse("x</think>Checking." + kBlock + kEos, ThinkingMode::kThinking).ended);
}

TEST(CompletionParserB27, IsReusable) {
  CompletionParser parser(ThinkingMode::kThinking, "call_a_");
  ParsedCompletion first;
  for (int request = 0; request < 3; ++request) {
    parser.feed("R</think>Checking." + kBlock.substr(0, request == 1 ? kBlock.size() / 2 : kBlock.size()));
    parser.finish();
    if (request == 0) first = parser.result();
    if (request == 2) {
      EXPECT_EQ(parser.result(), first);
    }
    parser.reset();
    EXPECT_EQ(parser.result(), ParsedCompletion{});
  }
  EXPECT_EQ(first.tool_calls[1].id, "call_a_1");
}

TEST(CompletionParserB27, DeliversTextThatNeverBecomesACall) {
  for (const std::string text :
       {"a < b", "a <", "<|tool_calls|>", "x<｜DS", "\n\n<｜DSML｜tool_call", "\n\n<｜DSML｜tool_calls", "\n",
        "\n\n\n", "end\n\n", "<｜DSML｜tool_call>", "\n\n<｜DSML｜tool_calls and other markup", "", "ａ｜",
        "<｜end▁of▁sen", "use <｜DSML｜tool_calls> like this", "\n\n<｜DSML｜tool_calls>\ntext",
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke>\n",
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\"></｜DSML｜tool_calls>"}) {
    const ParsedCompletion parsed = chat(text);
    EXPECT_EQ(parsed.content, text);
    EXPECT_TRUE(parsed.tool_calls.empty());
  }
}

TEST(CompletionParser, HoldsBackNoMoreThanAMark) {
  CompletionParser parser(ThinkingMode::kChat);
  EXPECT_EQ(parser.feed("hello <"), (std::vector<ParserEvent>{{Kind::kContent, -1, "hello ", ""}}));
  EXPECT_EQ(parser.feed("b>\n"), (std::vector<ParserEvent>{{Kind::kContent, -1, "<b>", ""}}));
  EXPECT_EQ(parser.feed("\n\n"), (std::vector<ParserEvent>{{Kind::kContent, -1, "\n", ""}}));
  EXPECT_TRUE(parser.feed("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n").empty());
  EXPECT_EQ(parser.feed("<｜DSML｜parameter name=\"k\" string=\"true\">say \"hi"),
            (std::vector<ParserEvent>{{Kind::kToolCallStart, 0, "f", "call_0"},
                                      {Kind::kArguments, 0, "{\"k\": \"say \\\"hi", ""}}));
  EXPECT_EQ(parser.feed("\"\n</"), (std::vector<ParserEvent>{{Kind::kArguments, 0, "\\\"\\n", ""}}));
  EXPECT_EQ(parser.feed("｜DSML｜parameter>"), (std::vector<ParserEvent>{{Kind::kArguments, 0, "\"", ""}}));
  EXPECT_EQ(parser.feed("\n</｜DSML｜invoke"),
            (std::vector<ParserEvent>{{Kind::kArguments, 0, "}", ""}, {Kind::kToolCallEnd, 0, "", ""}}));
}

TEST(CompletionParser, NeverCutsACharacter) {
  const std::string text = "é你😀</think>你😀" + kBlock;
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    CompletionParser parser(ThinkingMode::kThinking);
    for (const auto& piece : {text.substr(0, cut), text.substr(cut)}) {
      for (const ParserEvent& event : parser.feed(piece)) {
        EXPECT_NO_THROW(static_cast<void>(nlohmann::json(event.text).dump())) << "not UTF-8 at cut " << cut;
      }
    }
  }
}

TEST(CompletionParser, KeepsUnclosedReasoning) {
  const ParsedCompletion parsed = parse("thinking" + kBlock + " <", ThinkingMode::kThinking);
  EXPECT_EQ(parsed.reasoning, "thinking" + kBlock + " <");
  EXPECT_TRUE(parsed.content.empty() && parsed.tool_calls.empty());
  EXPECT_FALSE(parsed.malformed.empty());
}

TEST(CompletionParser, LeavesBrokenCallsOpen) {
  const std::string head =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
      "<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n";
  for (const std::string rest :
       {"<｜DSML｜parameter name=\"a\" "
        "string=\"true\">y</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "<｜DSML｜parameter name=\"b\">y</｜DSML｜parameter>\n</｜DSML｜invoke>", "text",
        "<｜DSML｜parameter string=\"true\">y</｜DSML｜parameter>"}) {
    const ParsedCompletion parsed = chat("C" + head + rest);
    ASSERT_EQ(parsed.tool_calls.size(), 1u) << rest;
    EXPECT_FALSE(parsed.tool_calls[0].complete) << rest;
    EXPECT_EQ(parsed.tool_calls[0].arguments, "{\"a\": \"x\"") << rest;
    EXPECT_FALSE(parsed.malformed.empty());
    EXPECT_EQ(parsed.content.substr(0, 1), "C");
    EXPECT_NE(parsed.content.find(rest.substr(rest[0] == '<' ? 20 : 0, 20)), std::string::npos)
        << parsed.content;
  }
}

TEST(CompletionParser, LeavesACutOffCallOpen) {
  for (std::size_t length = 0; length <= kBlock.size(); ++length) {
    const ParsedCompletion parsed = parse_in_pieces("C" + kBlock.substr(0, length), ThinkingMode::kChat, {});
    for (const ParsedToolCall& call : parsed.tool_calls) {
      EXPECT_EQ(call.complete, nlohmann::json::accept(call.arguments)) << length << " " << call.arguments;
    }
    if (!parsed.tool_calls.empty()) {
      EXPECT_EQ(parsed.content, "C") << length;
    }
  }
}

TEST(CompletionParser, ReadsWhatIsNearlyABlock) {
  const std::string call =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  for (const std::string before : {"", "\n", "\n\n", "\n\n\n"}) {
    const ParsedCompletion parsed = chat("A" + before + call);
    ASSERT_EQ(parsed.tool_calls.size(), 1u);
    EXPECT_EQ(parsed.content, before.size() == 3 ? "A\n" : "A");
  }
  const ParsedCompletion loose = chat(
      "<｜DSML｜tool_calls> <｜DSML｜invoke  name=\"f\">"
      "<｜DSML｜parameter name=\"p\" string=\"false\">Oslo</｜DSML｜parameter>  "
      "</｜DSML｜invoke></｜DSML｜tool_calls>\n" +
      kEos + "ignored");
  ASSERT_EQ(loose.tool_calls.size(), 1u);
  EXPECT_EQ(loose.tool_calls[0].arguments, R"({"p": "Oslo"})");
  EXPECT_EQ(loose.content, "");
  EXPECT_TRUE(loose.ended);
  const ParsedCompletion more = chat("A\n\n" + call + "\n then " + call);
  EXPECT_EQ(more.content, "A\n then ");
  EXPECT_EQ(more.tool_calls.size(), 2u);
}

TEST(CompletionParser, BoundsWhiteSpaceBetweenTags) {
  const std::string text =
      "\n\n<｜DSML｜tool_calls>" + std::string(5000, '\n') + "<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>";
  EXPECT_EQ(parse_in_pieces(text, ThinkingMode::kChat, {}).content, text);
  EXPECT_EQ(parse_in_pieces(text, ThinkingMode::kChat, {100, 1000, 2000, 3000}).content, text);
}

TEST(CompletionParser, QuotesValuesThatAreNotJson) {
  for (const auto& [value, expected] :
       std::vector<std::pair<std::string, std::string>>{{"1.50", "1.50"},
                                                        {"{\"a\":1}", "{\"a\":1}"},
                                                        {"NaN", "\"NaN\""},
                                                        {"", "\"\""},
                                                        {"[1", "\"[1\""},
                                                        {" 1 ", " 1 "}}) {
    const ParsedCompletion parsed = chat(
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"v\" "
        "string=\"false\">" +
        value + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
    ASSERT_EQ(parsed.tool_calls.size(), 1u);
    EXPECT_EQ(parsed.tool_calls[0].arguments, "{\"v\": " + expected + "}");
  }
}

TEST(ParseCompletion, RefusesWhatTheReferenceRefuses) {
  const std::string call =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  const auto with_parameters = [](const std::string& parameters) {
    return "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n" + parameters +
           "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  };
  const std::string p = "<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n";
  EXPECT_TRUE(parse_completion(call + kEos, ThinkingMode::kChat));
  EXPECT_TRUE(parse_completion(call, ThinkingMode::kChat));  // the reference wants no marker after a block
  EXPECT_TRUE(parse_completion(with_parameters(p) + kEos, ThinkingMode::kChat));
  for (const std::string& text :
       {std::string("no marker"), "a" + kEos + "b", call + "x" + kEos, call + kEos + "x",
        with_parameters(p + p) + kEos, with_parameters("text") + kEos, std::string("a<think>b") + kEos,
        std::string("a｜DSML｜b") + kEos, std::string("a</think>b") + kEos, "\n" + call.substr(2) + kEos,
        with_parameters("<｜DSML｜parameter name=\"a\">x</｜DSML｜parameter>\n") + kEos,
        with_parameters(p.substr(0, p.size() - 1)) + kEos}) {
    const auto parsed = parse_completion(text, ThinkingMode::kChat);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidData);
  }
  EXPECT_FALSE(parse_completion("no close" + kEos, ThinkingMode::kThinking));
  EXPECT_FALSE(parse_completion("r" + call + kEos, ThinkingMode::kThinking));
  EXPECT_FALSE(parse_completion("a<think>b</think>" + kEos, ThinkingMode::kThinking));
}

}  // namespace
}  // namespace pivot
