// The report builder: units, tables that fit, charts and pages that are well formed.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/report/chart.h"
#include "base/report/html.h"
#include "base/report/text.h"
#include "base/report/units.h"

namespace pivot::report {
namespace {

TEST(Units, BytesCountsRatesAndTimes) {
  EXPECT_EQ(format_bytes(584), "584 B");
  EXPECT_EQ(format_bytes(159'609'485'896.0), "148.65 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(format_count(72317), "72,317");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_tokens(1048576), "1.05M");
  EXPECT_EQ(format_tokens(512), "512");
  EXPECT_EQ(format_number(0.000123456), "0.000123");
  EXPECT_EQ(format_number(3.0), "3");
  EXPECT_EQ(format_number(std::nan("")), "-");
  EXPECT_EQ(format_seconds(5000), "1 h 23 min");
  EXPECT_EQ(format_seconds(0.00038), "380 us");
  EXPECT_EQ(format_percent(0.934), "93.4%");
}

TEST(Units, WidthCountsCodePoints) {
  EXPECT_EQ(display_width("naïve"), 5u);
  EXPECT_EQ(truncate("naïve text", 6), "naïve…");
  EXPECT_EQ(truncate("short", 6), "short");
  EXPECT_EQ(truncate("x", 0), "");
}

TEST(Text, WrapKeepsWordsAndLineBreaks) {
  EXPECT_EQ(wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(wrap("a\nb", 10), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(wrap("indivisible", 4), (std::vector<std::string>{"indivisible"}));
  EXPECT_EQ(wrap("", 4), (std::vector<std::string>{""}));
}

TEST(Text, ControlCharactersAreSpelledEverywhere) {
  EXPECT_EQ(visible("a\x1b[31mb\n\xc2\x9b\x7f ü"), "a\\x1b[31mb\n\\x9b\\x7f ü");
  const std::string evil = "evil\x1b]0;\a";
  Document document;
  document.title = document.subtitle = evil;
  document.heading(evil);
  document.paragraph(evil);
  document.add(Items{false, {{evil, evil, evil, Tone::kGood}}});
  document.add(Findings{{{evil, Tone::kBad, evil, evil, evil, evil}}});
  document.add(Code{evil});
  document.add(Table{evil, {{evil, Align::kLeft}}, {{evil}}});
  document.add(BarChart{evil, evil, {evil}, {{evil, {1}}, {evil, {2}}}, 3, evil});
  document.add(LineChart{evil, evil, evil, false, false, {1}, {{evil, {1}}}});
  document.add(Heatmap{evil, evil, {evil}, {evil}, {1}, std::nullopt, std::nullopt});
  const std::string text = render_text(document, {80, false});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\a'), std::string::npos);
}

TEST(Text, TablesFitTheirWidth) {
  Table table;
  table.columns = {{"name", Align::kLeft}, {"value", Align::kRight}};
  table.rows = {{"a long description that has to be wrapped over several lines to fit", "1,234"}, {"b"}};
  const std::string text = render_text(table, {40, false});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 40u) << line;
  EXPECT_NE(text.find("1,234"), std::string::npos);
}

TEST(Text, TitlesWrapBeforeATableIsTakenApart) {
  Table table;
  table.columns = {
      {"layout", Align::kLeft}, {"decode tok/s", Align::kRight}, {"prefill tok/s", Align::kRight}};
  table.rows = {{"TP4", "1,234", "98.6K"}};
  EXPECT_EQ(
      render_text(table, {23, false}),
      "layout  decode  prefill\n         tok/s    tok/s\n──────  ──────  ───────\nTP4      1,234    98.6K\n");
  // Not even words fit: every row by itself, nothing lost.
  EXPECT_EQ(render_text(table, {20, false}),
            "TP4\n    decode tok/s\n    1,234\n    prefill tok/s\n    98.6K\n");
}

Document sample() {
  Document document;
  document.title = "A <b>title</b> & more";
  document.subtitle = "from \"nowhere\"";
  document.heading("Part");
  document.paragraph("text with <script>alert(1)</script>", Tone::kWarning);
  document.add(
      Items{true, {{"tag", "statement", "measured: here", Tone::kGood}, {"", "plain", "", Tone::kPlain}}});
  document.add(
      Findings{{{"does not port", Tone::kBad, "the <loader>", "other tensors", "public fact", "a & b"},
                {"yes", Tone::kGood, "", "a finding of one line", "", ""}}});
  document.add(Code{"a < b\nb > c"});
  document.add(BarChart{
      "Bars", "GiB", {"one", "two & three"}, {{"x", {1, 2}}, {"y", {0.5, std::nan("")}}}, 2.5, "limit"});
  document.add(
      LineChart{"Lines",
                "x",
                "y",
                true,
                true,
                {1, 10, 100},
                {{"s", {1, std::nan(""), 100}}, {"empty", {std::nan(""), std::nan(""), std::nan("")}}}});
  document.add(
      Heatmap{"Map", "%", {"r0", "r1"}, {"c0", "c1"}, {1, 2, std::nan(""), 4}, std::nullopt, std::nullopt});
  document.add(Table{"caption", {{"k", Align::kLeft}, {"v", Align::kRight}}, {{"<k>", "1"}}});
  return document;
}

// Every opened element is closed in order: enough of XML to catch a broken page.
void expect_balanced(const std::string& html) {
  static const std::vector<std::string> kVoid = {"meta"};
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const bool closing = html[at + 1] == '/';
    if (html[at + 1] == '!') continue;
    const std::size_t begin = at + (closing ? 2 : 1);
    const std::string name = html.substr(begin, html.find_first_of(" />", begin) - begin);
    if (closing) {
      ASSERT_FALSE(open.empty()) << name;
      EXPECT_EQ(open.back(), name) << html.substr(at, 80);
      open.pop_back();
    } else if (html[end - 1] != '/' && std::find(kVoid.begin(), kVoid.end(), name) == kVoid.end()) {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(Html, PageIsSelfContainedEscapedAndBalanced) {
  const std::string html = render_html(sample());
  expect_balanced(html);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("http://www."),
            html.find("http://www.w3.org/2000/svg"));  // no address but the SVG namespace
  EXPECT_EQ(html.find("src="), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(html.find("two &amp; three"), std::string::npos);
}

TEST(Html, EmptyChartsDoNotBreakThePage) {
  Document document;
  document.title = "empty";
  document.add(BarChart{});
  document.add(LineChart{});
  document.add(Heatmap{});
  document.add(Table{});
  const std::string html = render_html(document);
  expect_balanced(html);
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_EQ(html.find("inf\""), std::string::npos);
  EXPECT_FALSE(render_text(document, {80, false}).empty());
}

TEST(Text, DocumentShowsEverythingAndColoursOnlyOnRequest) {
  const std::string plain = render_text(sample(), {80, false});
  for (const char* part : {"tag: statement", "[measured: here]", "two & three", "limit", "r1", "<k>"})
    EXPECT_NE(plain.find(part), std::string::npos) << part;
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(render_text(sample(), {80, true}).find("\x1b["), std::string::npos);
}

TEST(Text, FindingsAlignBesideTheirStatusAndFitTheWidth) {
  Document document;
  document.add(Findings{
      {{"no", Tone::kBad, "subject", "several words that do not fit into one line", "measured", "here"},
       {"with changes", Tone::kWarning, "", "text", "", ""}}});
  const std::string text = render_text(document, {40, false});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 40u) << line;
  EXPECT_NE(text.find("  no            subject\n"), std::string::npos) << text;
  EXPECT_NE(text.find("                [measured: here]\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  with changes  text\n"), std::string::npos) << text;
}

TEST(Chart, TicksAreRoundAndCover) {
  EXPECT_EQ(axis_ticks(0, 10, false), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(1, 1000, true), (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_EQ(axis_ticks(3, 3, false), (std::vector<double>{3}));
  for (const double high : {0.37, 95.0, 1234.0, 1e9}) {
    const auto ticks = axis_ticks(0, high, false);
    EXPECT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 8u);
    EXPECT_LE(ticks.back(), high * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace pivot::report
