#include "text/chat/encode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sha256.h"
#include "support/test_data.h"

namespace pivot {
namespace {

const std::string kBos = "<｜begin▁of▁sentence｜>";
const std::string kEos = "<｜end▁of▁sentence｜>";
const std::string kUser = "<｜User｜>";
const std::string kAssistant = "<｜Assistant｜>";

std::string encode(std::string_view json, ThinkingMode mode, bool drop_thinking = true,
                   ReasoningEffort effort = ReasoningEffort::kDefault,
                   ChatEncoding encoding = ChatEncoding::kPreview) {
  ChatOptions options;
  options.thinking = mode;
  options.drop_thinking = drop_thinking;
  options.effort = effort;
  options.encoding = encoding;
  const auto prompt = encode_chat(json, options);
  return prompt ? *prompt : "error: " + prompt.error().to_string();
}

std::string thinking(std::string_view json) { return encode(json, ThinkingMode::kThinking); }
std::string chat(std::string_view json) { return encode(json, ThinkingMode::kChat); }

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(EncodeChat, CarriesTheLiteralTextsOfTheSpecification) {
  const std::string effort(maximum_effort_text());
  EXPECT_EQ(effort.size(), 476u);
  EXPECT_EQ(test::sha256(effort), "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7");
  const auto tools = render_tools_section({"{\"name\":\"f\"}"});
  ASSERT_TRUE(tools);
  EXPECT_EQ(tools->size(), 1002u);
  EXPECT_EQ(test::sha256(*tools), "ea63e9b9ea75623dcd446ad48a5264e07d353d7d6ab2ceaa2b6613173235a12f");
}

TEST(EncodeChat, RendersPlainTurns) {
  EXPECT_EQ(chat(R"([{"role":"user","content":"hi"}])"), kBos + kUser + "hi" + kAssistant + "</think>");
  EXPECT_EQ(thinking(R"([{"role":"user","content":"hi"}])"), kBos + kUser + "hi" + kAssistant + "<think>");
  EXPECT_EQ(chat(R"([{"role":"system","content":"S"},{"role":"user","content":"hi"},
                     {"role":"assistant","content":"a"}])"),
            kBos + "S" + kUser + "hi" + kAssistant + "</think>a" + kEos);
}

// The nine cases of public-faults.md B28.
TEST(EncodeChatB28, PutsToolResultsInTheOrderOfTheCallsAndKeepsReasoning) {
  const std::string prompt = thinking(R"([
    {"role":"system","content":"S","tools":[{"type":"function","function":{"name":"f"}}]},
    {"role":"user","content":"u"},
    {"role":"assistant","content":"","reasoning_content":"R1","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
      {"id":"c2","type":"function","function":{"name":"f","arguments":"{\"a\": \"x\"}"}}]},
    {"role":"tool","tool_call_id":"c2","content":"second"},
    {"role":"tool","tool_call_id":"c1","content":"first"}])");
  EXPECT_TRUE(contains(prompt, "<tool_result>first</tool_result>\n\n<tool_result>second</tool_result>" +
                                   kAssistant + "<think>"))
      << prompt;
  EXPECT_TRUE(contains(prompt,
                       "<think>R1</think>\n\n<｜DSML｜tool_calls>\n"
                       "<｜DSML｜invoke name=\"f\">\n"
                       "<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>\n"
                       "</｜DSML｜invoke>\n"
                       "<｜DSML｜invoke name=\"f\">\n"
                       "<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n"
                       "</｜DSML｜invoke>\n"
                       "</｜DSML｜tool_calls>" +
                           kEos + kUser))
      << prompt;
}

TEST(EncodeChatB28, DropsTheReasoningOfEarlierTurnsOnlyWithoutTools) {
  const std::string_view json = R"([{"role":"user","content":"u1"},
    {"role":"assistant","reasoning_content":"R1","content":"a1"},{"role":"user","content":"u2"}])";
  const std::string dropped =
      kBos + kUser + "u1" + kAssistant + "</think>a1" + kEos + kUser + "u2" + kAssistant;
  EXPECT_EQ(thinking(json), dropped + "<think>");
  EXPECT_EQ(chat(json), dropped + "</think>");
  EXPECT_EQ(encode(json, ThinkingMode::kThinking, false), kBos + kUser + "u1" + kAssistant +
                                                              "<think>R1</think>a1" + kEos + kUser + "u2" +
                                                              kAssistant + "<think>");
}

TEST(EncodeChatB28, RendersNullContentAndEmptyArguments) {
  const std::string prompt = chat(R"([{"role":"user","content":"u"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}])");
  EXPECT_EQ(prompt, kBos + kUser + "u" + kAssistant +
                        "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n"
                        "</｜DSML｜tool_calls>" +
                        kEos);
}

TEST(EncodeChatB28, MergesConsecutiveUserMessages) {
  EXPECT_EQ(chat(R"([{"role":"user","content":"u1"},{"role":"user","content":"u2"}])"),
            kBos + kUser + "u1\n\nu2" + kAssistant + "</think>");
}

TEST(EncodeChatB28, SendsArgumentsThatAreNoObjectAsOneParameter) {
  for (const std::string arguments : {"oops", "[1, 2]", "", "{\\\"a\\\": 1", "null"}) {
    const std::string prompt = chat(R"([{"role":"user","content":"u"},{"role":"assistant","tool_calls":[
      {"id":"c","function":{"name":"f","arguments":")" +
                                    arguments + R"("}}]}])");
    std::string raw = arguments;
    for (std::size_t at; (at = raw.find('\\')) != std::string::npos;) raw.erase(at, 1);
    EXPECT_TRUE(contains(prompt, "\n<｜DSML｜parameter name=\"arguments\" string=\"true\">" + raw +
                                     "</｜DSML｜parameter>\n</｜DSML｜invoke>"))
        << prompt;
  }
}

TEST(EncodeChatB28, RendersADeveloperMessageBetweenCallAndResult) {
  const std::string_view json = R"([{"role":"user","content":"u"},
    {"role":"assistant","reasoning_content":"R","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},
    {"role":"developer","content":"D"},{"role":"tool","tool_call_id":"c","content":"ok"}])";
  EXPECT_TRUE(
      contains(chat(json), kEos + kUser + "D" + kUser + "<tool_result>ok</tool_result>" + kAssistant));
  // Thinking without tools: the developer message lies before the last user turn and goes, the result stays.
  EXPECT_TRUE(
      contains(thinking(json), kEos + kUser + "<tool_result>ok</tool_result>" + kAssistant + "<think>"));
  EXPECT_FALSE(contains(thinking(json), kUser + "D"));
}

TEST(EncodeChatB28, NeverLosesAResultWithoutACall) {
  const std::string_view json = R"([{"role":"user","content":"u"},{"role":"assistant","tool_calls":[
      {"id":"c1","function":{"name":"f","arguments":"{}"}},{"id":"c2","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"c2","content":"two"},{"role":"tool","tool_call_id":"lost","content":"stray"},
    {"role":"tool","tool_call_id":"c1","content":"one"}])";
  EXPECT_TRUE(contains(chat(json),
                       "<tool_result>stray</tool_result>\n\n<tool_result>one</tool_result>\n\n"
                       "<tool_result>two</tool_result>"));
  EXPECT_TRUE(contains(chat(R"([{"role":"tool","tool_call_id":"x","content":"r"}])"),
                       kUser + "<tool_result>r</tool_result>" + kAssistant));
}

TEST(EncodeChatB28, JoinsContentParts) {
  EXPECT_EQ(chat(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}},
                     {"type":"text","text":"b"}]}])"),
            kBos + kUser + "a\n\n[Unsupported image_url]\n\nb" + kAssistant + "</think>");
  EXPECT_TRUE(
      contains(chat(R"([{"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])"),
               "<tool_result>a\n\nb</tool_result>"));
}

TEST(EncodeChatB28, GivesEachEffortItsPrompt) {
  const std::string_view json = R"([{"role":"user","content":"u"}])";
  const std::string plain = kUser + "u" + kAssistant + "<think>";
  const std::string text(maximum_effort_text());
  const auto with = [&](ReasoningEffort effort, ChatEncoding encoding) {
    return encode(json, ThinkingMode::kThinking, true, effort, encoding);
  };
  EXPECT_EQ(with(ReasoningEffort::kHigh, ChatEncoding::kPreview), kBos + plain);
  EXPECT_EQ(with(ReasoningEffort::kMax, ChatEncoding::kPreview), kBos + text + plain);
  EXPECT_TRUE(contains(with(ReasoningEffort::kLow, ChatEncoding::kPreview), "error: "));
  EXPECT_EQ(with(ReasoningEffort::kLow, ChatEncoding::k0731), kBos + plain);
  EXPECT_EQ(with(ReasoningEffort::kHigh, ChatEncoding::k0731), kBos + text + plain);
  EXPECT_TRUE(contains(with(ReasoningEffort::kMax, ChatEncoding::k0731), "error: "));
  // No effort in chat mode, as in the reference.
  EXPECT_EQ(encode(json, ThinkingMode::kChat, true, ReasoningEffort::kMax),
            kBos + kUser + "u" + kAssistant + "</think>");
  ChatOptions options;
  options.encoding = ChatEncoding::k0731;
  options.effort = ReasoningEffort::kMax;
  options.max_effort_text = "LONGER\n\n";
  EXPECT_EQ(encode_chat(json, options).value_or(""), kBos + "LONGER\n\n" + plain);
}

TEST(EncodeChat, AttachesToolsGivenBesideTheMessages) {
  const std::string_view tools = R"("tools":[{"type":"function","function":{"name":"f","n":1e20}}])";
  const auto section = render_tools_section({R"({"name":"f","n":1e20})"});
  ASSERT_TRUE(section);
  EXPECT_TRUE(contains(*section, "{\"name\": \"f\", \"n\": 1e+20}"));
  EXPECT_EQ(
      chat(fmt::format(
          R"({{{},"messages":[{{"role":"system","content":"S"}},{{"role":"user","content":"u"}}]}})", tools)),
      kBos + "S\n\n" + *section + kUser + "u" + kAssistant + "</think>");
  EXPECT_EQ(chat(fmt::format(R"({{"messages":[{{"role":"user","content":"u"}}],{}}})", tools)),
            kBos + "\n\n" + *section + kUser + "u" + kAssistant + "</think>");
}

TEST(EncodeChat, RendersTaskTokens) {
  EXPECT_EQ(chat(R"([{"role":"user","content":"u","task":"title"}])"), kBos + kUser + "u<｜title｜>");
  EXPECT_EQ(thinking(R"([{"role":"user","content":"u","task":"action"}])"),
            kBos + kUser + "u" + kAssistant + "<think><｜action｜>");
  // The answer to a task has no reasoning part.
  EXPECT_EQ(
      thinking(
          R"([{"role":"user","content":"u","task":"query"},{"role":"assistant","content":"q","reasoning_content":"R"}])"),
      kBos + kUser + "u<｜query｜>q" + kEos);
  // A task keeps the next user message apart.
  EXPECT_EQ(chat(R"([{"role":"user","content":"u","task":"title"},{"role":"user","content":"v"}])"),
            kBos + kUser + "u" + kUser + "v" + kAssistant + "</think>");
}

TEST(EncodeChat, ContinuesAnAssistantMessageWithoutEos) {
  EXPECT_EQ(chat(R"([{"role":"user","content":"u"},{"role":"assistant","content":"The","wo_eos":true}])"),
            kBos + kUser + "u" + kAssistant + "</think>The");
}

TEST(EncodeChat, RefusesBadInputInOneSentence) {
  for (const std::string json :
       {"", "[", "{}", "[]", "[1]", R"([{"role":"robot","content":"x"}])", R"([{"content":"x"}])",
        R"([{"role":"user","content":5}])", R"([{"role":"user","content":[{"text":"x"}]}])",
        R"([{"role":"developer","content":""}])", R"([{"role":"user","content":"x","task":"dance"}])",
        R"([{"role":"assistant","tool_calls":[{"function":{}}]}])",
        R"([{"role":"assistant","tool_calls":{}}])",
        R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[]}}]}])",
        R"([{"role":"system","content":"x","tools":[{"name":"f"}]}])",
        "[{\"role\":\"user\",\"content\":\"\xFF\"}]"}) {
    const auto prompt = encode_chat(json, ChatOptions{});
    ASSERT_FALSE(prompt) << json;
    EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument) << json;
    EXPECT_FALSE(contains(prompt.error().to_string(), "\n")) << json;
  }
  EXPECT_TRUE(
      contains(thinking(R"([{"role":"user","content":"x"},{"role":"user","content":5}])"), "message 1"));
  EXPECT_FALSE(parse_reasoning_effort("medium"));
}

}  // namespace
}  // namespace pivot
