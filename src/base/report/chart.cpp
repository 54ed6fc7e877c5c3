#include "base/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/report/units.h"

namespace pivot::report {

namespace {

constexpr double kWidth = 760;
constexpr double kCharacter = 6.6;  // advance of one character of the 12 px label font

double finite(double value) { return std::isfinite(value) ? value : 0.0; }

double label_column(const std::vector<std::string>& labels) {
  std::size_t widest = 0;
  for (const std::string& label : labels) widest = std::max(widest, display_width(label));
  return std::min(280.0, static_cast<double>(widest) * kCharacter + 14);
}

std::string open_svg(double height, std::string_view title) {
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
      "xmlns=\"http://www.w3.org/2000/svg\">"
      "<text x=\"0\" y=\"14\" class=\"chart-title\">{}</text>\n",
      kWidth, height, escape(title), escape(title));
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view content,
                    std::string_view css = "label") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y,
                     anchor, css, escape(content));
}

std::string rule(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, css);
}

// A legend row under the title; returns its height.
double append_legend(std::string& svg, const std::vector<Series>& series, double y) {
  double x = 0;
  double used = 20;
  for (std::size_t s = 0; s < series.size(); ++s) {
    const double width = static_cast<double>(display_width(series[s].name)) * kCharacter + 30;
    if (x > 0 && x + width > kWidth) {
      x = 0;
      y += 18;
      used += 18;
    }
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" rx=\"2\" class=\"fill-{}\"/>\n", x,
        y - 10, s % kNumSeriesColors + 1);
    svg += text_at(x + 16, y, "start", series[s].name);
    x += width;
  }
  return used;
}

struct Scale {
  double low, high, from, to;
  bool log;
  double operator()(double value) const {
    const auto map = [this](double v) {
      return log ? std::log10(std::max(v, std::numeric_limits<double>::min())) : v;
    };
    const double span = map(high) - map(low);
    return from + (span == 0 ? 0.5 : (map(value) - map(low)) / span) * (to - from);
  }
};

std::string tick_text(double value) {
  if (std::fabs(value) >= 1e4) return format_tokens(value);
  return format_number(value, 3);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> axis_ticks(double low, double high, bool log, int most) {
  std::vector<double> ticks;
  if (!(high > low) || !std::isfinite(low) || !std::isfinite(high)) return {low};
  if (log && low > 0) {
    const int first = static_cast<int>(std::ceil(std::log10(low) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log10(high) + 1e-9));
    const int step = std::max(1, (last - first + most) / most);
    for (int decade = first; decade <= last; decade += step) ticks.push_back(std::pow(10.0, decade));
    if (ticks.size() >= 2) return ticks;
    ticks.clear();
  }
  const double rough = (high - low) / most;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power * 10;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough) {
      step = power * factor;
      break;
    }
  }
  for (double tick = std::ceil(low / step) * step; tick <= high + step * 1e-9; tick += step)
    ticks.push_back(std::fabs(tick) < step * 1e-9 ? 0.0 : tick);
  return ticks;
}

std::string render_svg(const BarChart& chart) {
  constexpr double kRow = 26;
  double top = chart.limit.value_or(0.0);
  std::vector<double> totals(chart.categories.size(), 0.0);
  for (std::size_t c = 0; c < chart.categories.size(); ++c) {
    for (const Series& series : chart.series) totals[c] += finite(series.values[c]);
    top = std::max(top, totals[c]);
  }
  if (top <= 0) top = 1;
  std::string body;
  double y = 34;
  if (chart.series.size() > 1) y += append_legend(body, chart.series, y);
  const double plot_top = y - 6;
  const double left = label_column(chart.categories);
  const Scale scale{0, top, left, kWidth - 70, false};
  const double plot_bottom = plot_top + kRow * static_cast<double>(chart.categories.size());
  for (const double tick : axis_ticks(0, top, false)) {
    body += rule(scale(tick), plot_top, scale(tick), plot_bottom, "grid");
    body += text_at(scale(tick), plot_bottom + 15, "middle", tick_text(tick));
  }
  body += text_at(kWidth, plot_bottom + 15, "end", chart.unit);
  for (std::size_t c = 0; c < chart.categories.size(); ++c) {
    const double row_y = plot_top + kRow * static_cast<double>(c) + 4;
    body += text_at(left - 8, row_y + 13, "end", truncate(chart.categories[c], 42));
    double upto = 0;
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      const double value = finite(chart.series[s].values[c]);
      if (value <= 0) continue;
      const double x = scale(upto);
      upto += value;
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" class=\"fill-{}\"><title>{}: {} "
          "{}</title></rect>\n",
          x, row_y, std::max(0.5, scale(upto) - x), s % kNumSeriesColors + 1,
          escape(chart.series.size() > 1 ? chart.series[s].name : chart.categories[c]),
          format_number(value, 4), escape(chart.unit));
    }
    body += text_at(scale(totals[c]) + 5, row_y + 13, "start", format_number(totals[c], 4), "value");
  }
  if (chart.limit) {
    const double x = scale(*chart.limit);
    body += rule(x, plot_top - 4, x, plot_bottom, "limit");
    body += text_at(x - 4, plot_bottom + 30, "end",
                    fmt::format("{}: {} {}", chart.limit_label, format_number(*chart.limit, 4), chart.unit),
                    "value");
  }
  return open_svg(plot_bottom + (chart.limit ? 36 : 22), chart.title) + body + "</svg>\n";
}

std::string render_svg(const LineChart& chart) {
  constexpr double kPlotHeight = 240;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const Series& series : chart.series) {
    for (const double value : series.values) {
      if (!std::isfinite(value) || (chart.log_y && value <= 0)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (!(high >= low)) low = 0, high = 1;
  if (!chart.log_y) low = std::min(0.0, low);
  if (high == low) high = low + 1;
  double x_low = chart.x.empty() ? 0 : *std::min_element(chart.x.begin(), chart.x.end());
  double x_high = chart.x.empty() ? 1 : *std::max_element(chart.x.begin(), chart.x.end());
  if (x_high == x_low) x_high = x_low + 1;

  std::string body;
  double y = 34;
  y += append_legend(body, chart.series, y);
  const double plot_top = y;
  const double plot_bottom = plot_top + kPlotHeight;
  const double left = 62;
  const Scale scale_x{x_low, x_high, left + 6, kWidth - 20, chart.log_x};
  const Scale scale_y{low, high, plot_bottom, plot_top + 6, chart.log_y};
  for (const double tick : axis_ticks(low, high, chart.log_y)) {
    body += rule(left, scale_y(tick), kWidth - 10, scale_y(tick), "grid");
    body += text_at(left - 8, scale_y(tick) + 4, "end", tick_text(tick));
  }
  // Contexts and batches double from point to point: the points themselves are the ticks of a logarithmic x
  // axis.
  const std::vector<double> x_ticks = chart.log_x ? chart.x : axis_ticks(x_low, x_high, false, 8);
  for (const double tick : x_ticks)
    body += text_at(scale_x(tick), plot_bottom + 16, "middle", format_tokens(tick));
  body += rule(left, plot_bottom, kWidth - 10, plot_bottom, "axis");
  body += text_at((left + kWidth) / 2, plot_bottom + 34, "middle", chart.x_label);
  body += text_at(kWidth - 10, 14, "end", chart.y_label);
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    std::string points;
    std::string marks;
    for (std::size_t i = 0; i < chart.x.size(); ++i) {
      const double value = chart.series[s].values[i];
      if (!std::isfinite(value) || (chart.log_y && value <= 0)) continue;
      points += fmt::format("{:.1f},{:.1f} ", scale_x(chart.x[i]), scale_y(value));
      marks += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" class=\"fill-{}\"><title>{}, {}: "
          "{}</title></circle>\n",
          scale_x(chart.x[i]), scale_y(value), s % kNumSeriesColors + 1, escape(chart.series[s].name),
          format_tokens(chart.x[i]), format_number(value, 4));
    }
    body += fmt::format("<polyline points=\"{}\" class=\"line-{}\"/>\n{}", points, s % kNumSeriesColors + 1,
                        marks);
  }
  return open_svg(plot_bottom + 42, chart.title) + body + "</svg>\n";
}

std::string render_svg(const Heatmap& map) {
  constexpr double kCell = 24;
  double low = map.low.value_or(std::numeric_limits<double>::infinity());
  double high = map.high.value_or(-std::numeric_limits<double>::infinity());
  for (const double value : map.values) {
    if (!std::isfinite(value)) continue;
    if (!map.low) low = std::min(low, value);
    if (!map.high) high = std::max(high, value);
  }
  if (!(high > low)) high = low + 1;
  const double left = label_column(map.row_labels);
  const auto columns = static_cast<double>(std::max<std::size_t>(1, map.column_labels.size()));
  const double cell_width = std::min(64.0, (kWidth - left) / columns);
  const bool numbers = cell_width >= 34;
  std::string body;
  for (std::size_t c = 0; c < map.column_labels.size(); ++c)
    body += text_at(left + cell_width * (static_cast<double>(c) + 0.5), 40, "middle", map.column_labels[c]);
  for (std::size_t r = 0; r < map.row_labels.size(); ++r) {
    const double y = 48 + kCell * static_cast<double>(r);
    body += text_at(left - 8, y + 16, "end", truncate(map.row_labels[r], 42));
    for (std::size_t c = 0; c < map.column_labels.size(); ++c) {
      const double value = map.values[r * map.column_labels.size() + c];
      const double x = left + cell_width * static_cast<double>(c);
      if (!std::isfinite(value)) {
        body += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" class=\"empty\"/>\n", x, y,
            cell_width - 2, kCell - 2);
        continue;
      }
      const double share = std::clamp((value - low) / (high - low), 0.0, 1.0);
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" class=\"heat\" "
          "fill-opacity=\"{:.3f}\">"
          "<title>{}, {}: {} {}</title></rect>\n",
          x, y, cell_width - 2, kCell - 2, 0.06 + 0.94 * share, escape(map.row_labels[r]),
          escape(map.column_labels[c]), format_number(value, 4), escape(map.unit));
      if (numbers)
        body += text_at(x + (cell_width - 2) / 2, y + 15, "middle", format_number(value),
                        share > 0.55 ? "on-heat" : "ink");  // of .label the contrast is too low
    }
  }
  const double height = 56 + kCell * static_cast<double>(map.row_labels.size());
  body += text_at(kWidth, 14, "end",
                  fmt::format("{} .. {} {}", format_number(low), format_number(high), map.unit));
  return open_svg(height, map.title) + body + "</svg>\n";
}

}  // namespace pivot::report
