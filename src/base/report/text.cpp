#include "base/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/report/units.h"

namespace pivot::report {

namespace {

constexpr int kTableGap = 2;
constexpr int kNarrowestWrappedColumn = 8;

std::string paint(std::string text, const char* code, bool color) {
  if (!color || text.empty() || *code == '\0') return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

const char* tone_code(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "32";
    case Tone::kWarning:
      return "33";
    case Tone::kBad:
      return "31";
    case Tone::kMuted:
      return "2";
    case Tone::kPlain:
      break;
  }
  return "";
}

std::string toned(std::string text, Tone tone, bool color) {
  return paint(std::move(text), tone_code(tone), color);
}

std::string repeat(std::string_view piece, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += piece;
  return text;
}

std::string padded(const std::string& hostile, int width, Align align, Tone tone, bool color) {
  const std::string text = visible(hostile);
  const int space = std::max(0, width - static_cast<int>(display_width(text)));
  const std::string fill(static_cast<std::size_t>(space), ' ');
  const std::string body = toned(text, tone, color);
  return align == Align::kRight ? fill + body : body + fill;
}

void rstrip(std::string& line) {
  while (!line.empty() && line.back() == ' ') line.pop_back();
}

int longest_word(std::string_view text) {
  std::size_t longest = 0;
  for (const std::string& line : wrap(text, 1)) longest = std::max(longest, display_width(line));
  return static_cast<int>(longest);
}

// Column widths that fit `width`; empty where none do. Titles and left-aligned cells may wrap at blanks, the
// widest first.
std::vector<int> fit_columns(const Table& table, int width) {
  const std::size_t count = table.columns.size();
  std::vector<int> widths(count, 0);
  std::vector<int> least(count, 0);
  int total = count == 0 ? 0 : kTableGap * static_cast<int>(count - 1);
  for (std::size_t c = 0; c < count; ++c) {
    const bool left = table.columns[c].align == Align::kLeft;
    widths[c] = static_cast<int>(display_width(table.columns[c].title));
    least[c] = std::max(left ? std::min(widths[c], kNarrowestWrappedColumn) : 0,
                        longest_word(table.columns[c].title));
    for (const auto& row : table.rows) {
      if (c >= row.size()) continue;
      const auto cell = static_cast<int>(display_width(visible(row[c].text)));
      widths[c] = std::max(widths[c], cell);
      least[c] = std::max(least[c], left ? std::min(std::max(longest_word(row[c].text), 0), cell) : cell);
    }
    if (left) least[c] = std::max(least[c], std::min(widths[c], kNarrowestWrappedColumn));
    total += widths[c];
  }
  while (total > width) {
    std::size_t widest = count;
    for (std::size_t c = 0; c < count; ++c)
      if (widths[c] > least[c] && (widest == count || widths[c] > widths[widest])) widest = c;
    if (widest == count) return {};
    --widths[widest];
    --total;
  }
  return widths;
}

void append_row(std::string& out, const Table& table, const std::vector<int>& widths,
                const std::vector<Cell>& row, bool color) {
  std::vector<std::vector<std::string>> lines(widths.size());
  std::size_t height = 1;
  for (std::size_t c = 0; c < widths.size(); ++c) {
    if (c < row.size()) lines[c] = wrap(row[c].text, widths[c]);
    height = std::max(height, lines[c].size());
  }
  for (std::size_t l = 0; l < height; ++l) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      if (c != 0) line += std::string(kTableGap, ' ');
      const bool present = l < lines[c].size();
      line += padded(present ? lines[c][l] : std::string(), widths[c], table.columns[c].align,
                     c < row.size() ? row[c].tone : Tone::kPlain, color);
    }
    rstrip(line);
    out += line + "\n";
  }
}

struct TextRenderer {
  const TextStyle& style;
  std::string out;

  void lines(std::string_view text, int indent = 0, Tone tone = Tone::kPlain) {
    for (const std::string& line : wrap(text, style.width - indent))
      out += std::string(static_cast<std::size_t>(indent), ' ') + toned(line, tone, style.color) + "\n";
  }

  // A table that is wider than the terminal: each row's first cell, then "title value" of the others below
  // it.
  void records(const Table& table) {
    constexpr int kIndent = 4;
    for (const auto& row : table.rows) {
      if (row.empty()) continue;
      lines(row[0].text, 0, row[0].tone);
      std::string line;
      for (std::size_t c = 1; c < std::min(row.size(), table.columns.size()); ++c) {
        if (row[c].text.empty()) continue;
        const std::string pair = table.columns[c].title + " " + row[c].text;
        if (!line.empty() &&
            display_width(line) + 2 + display_width(pair) > static_cast<std::size_t>(style.width - kIndent)) {
          lines(line, kIndent);
          line.clear();
        }
        line += (line.empty() ? "" : "; ") + pair;
      }
      if (!line.empty()) lines(line, kIndent);
    }
  }

  void operator()(const Heading& heading) {
    const std::string text = visible(heading.text);
    out += "\n" + paint(text, "1", style.color) + "\n";
    if (heading.level <= 2) out += repeat(heading.level == 1 ? "═" : "─", display_width(text)) + "\n";
  }
  void operator()(const Paragraph& paragraph) { lines(paragraph.text, 0, paragraph.tone); }
  void operator()(const Code& code) {
    std::size_t begin = 0;
    while (begin <= code.text.size()) {
      const std::size_t end = std::min(code.text.find('\n', begin), code.text.size());
      out += "    " + visible(code.text.substr(begin, end - begin)) + "\n";
      begin = end + 1;
    }
  }
  void operator()(const Items& items) {
    int number = 0;
    for (const Item& item : items.items) {
      std::string head = items.numbered ? fmt::format("{:>2}. ", ++number) : std::string("  - ");
      const std::string name = visible(item.tag);
      const std::string tag = name.empty() ? "" : name + ": ";
      std::string text = tag + item.text;
      if (!item.note.empty()) text += " [" + item.note + "]";
      bool first = true;
      for (std::string& line : wrap(text, style.width - 4)) {
        std::string body = line;
        if (first && !tag.empty() && body.compare(0, name.size(), name) == 0)
          body = toned(name, item.tone, style.color) + body.substr(name.size());
        else if (tag.empty())
          body = toned(std::move(body), item.tone, style.color);
        out += (first ? head : std::string("    ")) + body + "\n";
        first = false;
      }
    }
  }
  void operator()(const Findings& findings) {
    std::size_t widest = 0;
    for (const Finding& one : findings.findings)
      widest = std::max(widest, display_width(visible(one.status)));
    const int indent = widest == 0 ? 4 : static_cast<int>(widest) + 4;
    for (const Finding& one : findings.findings) {
      std::string lead = widest == 0
                             ? std::string("  - ")
                             : "  " + padded(one.status, indent - 2, Align::kLeft, one.tone, style.color);
      const auto block = [&](const std::string& text, const char* code) {
        for (const std::string& line : wrap(text, style.width - indent)) {
          out += lead + paint(line, code, style.color) + "\n";
          lead = std::string(static_cast<std::size_t>(indent), ' ');
        }
      };
      if (!one.subject.empty()) block(one.subject, "1");
      block(one.text, "");
      if (!one.basis.empty()) block(fmt::format("[{}: {}]", one.basis, one.reference), "2");
    }
  }
  void operator()(const Table& table) {
    if (!table.caption.empty()) lines(table.caption, 0, Tone::kMuted);
    const std::vector<int> widths = fit_columns(table, style.width);
    if (widths.empty() && !table.columns.empty()) return records(table);
    std::vector<Cell> titles;
    std::vector<Cell> rules;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      titles.emplace_back(table.columns[c].title);
      rules.emplace_back(repeat("─", static_cast<std::size_t>(widths[c])));
    }
    append_row(out, table, widths, titles, style.color);
    append_row(out, table, widths, rules, style.color);
    for (const auto& row : table.rows) append_row(out, table, widths, row, style.color);
  }
  void operator()(const BarChart& chart) {
    lines(chart.title + (chart.unit.empty() ? "" : " (" + chart.unit + ")"), 0, Tone::kMuted);
    std::size_t label_width = 0;
    double top = chart.limit.value_or(0.0);
    std::vector<double> totals(chart.categories.size(), 0.0);
    for (std::size_t c = 0; c < chart.categories.size(); ++c) {
      label_width = std::max(label_width, display_width(visible(chart.categories[c])));
      for (const Series& series : chart.series)
        totals[c] += std::isfinite(series.values[c]) ? series.values[c] : 0.0;
      top = std::max(top, totals[c]);
    }
    const int bar_width = std::max(10, style.width - static_cast<int>(label_width) - 14);
    static constexpr const char* kFills[] = {"█", "▓", "▒", "░", "▚", "▞", "▤", "▥"};
    for (std::size_t c = 0; c < chart.categories.size(); ++c) {
      std::string line =
          padded(chart.categories[c], static_cast<int>(label_width), Align::kLeft, Tone::kPlain, false) + " ";
      double upto = 0.0;
      int drawn = 0;
      for (std::size_t s = 0; s < chart.series.size(); ++s) {
        upto += std::isfinite(chart.series[s].values[c]) ? chart.series[s].values[c] : 0.0;
        const int end = top > 0 ? static_cast<int>(std::lround(upto / top * bar_width)) : 0;
        line += repeat(kFills[s % std::size(kFills)], static_cast<std::size_t>(std::max(0, end - drawn)));
        drawn = std::max(drawn, end);
      }
      out += line + " " + format_number(totals[c], 4) + "\n";
    }
    if (chart.series.size() > 1) {
      std::string legend;
      for (std::size_t s = 0; s < chart.series.size(); ++s)
        legend += fmt::format("{} {}  ", kFills[s % std::size(kFills)], chart.series[s].name);
      rstrip(legend);
      lines(legend, 0, Tone::kMuted);
    }
    if (chart.limit)
      lines(fmt::format("limit: {} {} ({})", format_number(*chart.limit, 4), chart.unit, chart.limit_label),
            0, Tone::kMuted);
  }
  void operator()(const LineChart& chart) {
    Table table;
    table.caption = chart.title + " (" + chart.y_label + ")";
    table.columns.push_back({chart.x_label, Align::kRight});
    for (const Series& series : chart.series) table.columns.push_back({series.name, Align::kRight});
    for (std::size_t i = 0; i < chart.x.size(); ++i) {
      std::vector<Cell> row = {Cell(format_tokens(chart.x[i]))};
      for (const Series& series : chart.series) row.emplace_back(format_rate(series.values[i]));
      table.rows.push_back(std::move(row));
    }
    (*this)(table);
  }
  void operator()(const Heatmap& map) {
    Table table;
    table.caption = map.title + (map.unit.empty() ? "" : " (" + map.unit + ")");
    table.columns.push_back({"", Align::kLeft});
    for (const std::string& label : map.column_labels) table.columns.push_back({label, Align::kRight});
    for (std::size_t r = 0; r < map.row_labels.size(); ++r) {
      std::vector<Cell> row = {Cell(map.row_labels[r])};
      for (std::size_t c = 0; c < map.column_labels.size(); ++c) {
        const double value = map.values[r * map.column_labels.size() + c];
        row.emplace_back(std::isfinite(value) ? format_number(value) : "");
      }
      table.rows.push_back(std::move(row));
    }
    (*this)(table);
  }
};

}  // namespace

std::vector<std::string> wrap(std::string_view hostile, int width) {
  const std::string text = visible(hostile);
  std::vector<std::string> lines;
  std::string line;
  std::size_t at = 0;
  const auto limit = static_cast<std::size_t>(std::max(1, width));
  while (at <= text.size()) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    if (!line.empty() && display_width(line) + 1 + display_width(word) > limit) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!word.empty()) {
      if (!line.empty()) line += ' ';
      line += word;
    }
    if (end < text.size() && text[end] == '\n') {
      lines.push_back(std::move(line));
      line.clear();
    }
    at = end + 1;
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string render_text(const Table& table, const TextStyle& style) {
  TextRenderer renderer{style, {}};
  renderer(table);
  return std::move(renderer.out);
}

std::string render_text(const Document& document, const TextStyle& style) {
  TextRenderer renderer{style, {}};
  renderer(Heading{1, document.title});
  if (!document.subtitle.empty()) renderer.lines(document.subtitle, 0, Tone::kMuted);
  bool previous_was_flow = true;
  for (const Block& block : document.blocks) {
    const bool heading = std::holds_alternative<Heading>(block);
    if (!heading && !previous_was_flow) renderer.out += "\n";
    std::visit(renderer, block);
    previous_was_flow = heading;
  }
  if (!renderer.out.empty() && renderer.out.front() == '\n') renderer.out.erase(0, 1);
  return std::move(renderer.out);
}

}  // namespace pivot::report
