// Charts as inline SVG. Colours are CSS variables (--series-1 ..., --ink, --grid) that html.h defines for
// light and dark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/report/document.h"

namespace pivot::report {

inline constexpr int kNumSeriesColors = 8;

std::string render_svg(const BarChart& chart);
std::string render_svg(const LineChart& chart);
std::string render_svg(const Heatmap& map);

// Round axis ticks that cover [low, high]: 1, 2 or 5 times a power of ten, at most `most` of them; decades if
// `log`.
std::vector<double> axis_ticks(double low, double high, bool log, int most = 6);

// Text made safe for HTML and XML content and attributes.
std::string escape(std::string_view text);

}  // namespace pivot::report
