// A Document on a terminal: aligned tables, wrapped paragraphs, bars drawn with block characters.
#pragma once

#include <string>
#include <string_view>

#include "base/report/document.h"

namespace pivot::report {

struct TextStyle {
  int width = 100;     // columns; tables wider than this have their widest left-aligned column wrapped
  bool color = false;  // ANSI colours for tones and headings
};

std::string render_text(const Document& document, const TextStyle& style);
std::string render_text(const Table& table, const TextStyle& style);

// Breaks text at blanks into lines of at most `width` columns; a longer word stays whole on its own line.
// Control characters come out spelled (units.h: visible).
std::vector<std::string> wrap(std::string_view text, int width);

}  // namespace pivot::report
