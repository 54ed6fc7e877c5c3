// A report as data: headings, paragraphs, tagged statements, tables and charts, rendered to a terminal
// (text.h) or to one self-contained HTML page (html.h). Commands build a Document once; both renderings then
// say the same thing.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pivot::report {

// How a cell or statement should strike the eye. Colour never carries meaning alone: the text says it too.
enum class Tone { kPlain, kGood, kWarning, kBad, kMuted };

struct Heading {
  int level = 2;  // 1 is the document's title
  std::string text;
};

struct Paragraph {
  std::string text;
  Tone tone = Tone::kPlain;
};

// One line of a list. `tag` is set apart before the text ("ports", "measured"); `note` follows it, muted.
struct Item {
  std::string tag;
  std::string text;
  std::string note;
  Tone tone = Tone::kPlain;
};
struct Items {
  bool numbered = false;
  std::vector<Item> items;
};

// One judgement: its status set apart from what it is about, why, and what it rests on.
struct Finding {
  std::string status;  // "does not port"; may be empty
  Tone tone = Tone::kPlain;
  std::string subject;  // may be empty
  std::string text;
  std::string basis;  // "measured", "assumption"; may be empty
  std::string reference;
};
struct Findings {
  std::vector<Finding> findings;
};

enum class Align { kLeft, kRight };
struct Column {
  std::string title;
  Align align = Align::kLeft;
};
struct Cell {
  Cell() = default;
  Cell(std::string value, Tone cell_tone = Tone::kPlain)
      : text(std::move(value)), tone(cell_tone) {}                                          // NOLINT
  Cell(const char* value, Tone cell_tone = Tone::kPlain) : text(value), tone(cell_tone) {}  // NOLINT
  std::string text;
  Tone tone = Tone::kPlain;
};
struct Table {
  std::string caption;
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // shorter rows are padded with empty cells
};

// Fixed text: a formula, a command.
struct Code {
  std::string text;
};

struct Series {
  std::string name;
  std::vector<double> values;  // NaN: no value
};

// Horizontal bars, one per category; several series are stacked from left to right.
struct BarChart {
  std::string title;
  std::string unit;
  std::vector<std::string> categories;
  std::vector<Series> series;   // values.size() == categories.size()
  std::optional<double> limit;  // a marked threshold, e.g. the memory of a card
  std::string limit_label;
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;
  std::vector<double> x;
  std::vector<Series> series;  // values.size() == x.size()
};

// Rows x columns of numbers; darker is larger.
struct Heatmap {
  std::string title;
  std::string unit;
  std::vector<std::string> row_labels;
  std::vector<std::string> column_labels;
  std::vector<double> values;  // row-major; NaN: no value
  std::optional<double> low;   // colour range; the data's own where absent
  std::optional<double> high;
};

using Block = std::variant<Heading, Paragraph, Items, Findings, Table, Code, BarChart, LineChart, Heatmap>;

struct Document {
  std::string title;
  std::string subtitle;
  std::vector<Block> blocks;

  template <class T>
  T& add(T block) {
    blocks.emplace_back(std::move(block));
    return std::get<T>(blocks.back());
  }
  void heading(std::string text, int level = 2) { add(Heading{level, std::move(text)}); }
  void paragraph(std::string text, Tone tone = Tone::kPlain) { add(Paragraph{std::move(text), tone}); }
};

}  // namespace pivot::report
