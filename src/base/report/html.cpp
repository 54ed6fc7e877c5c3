#include "base/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/report/chart.h"
#include "pivot_version.h"

namespace pivot::report {

namespace {

// Series colours are distinguishable with the common colour-vision deficiencies and keep 3:1 contrast on both
// grounds.
constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --ground:#fbfbfa; --panel:#ffffff; --ink:#1c1e21; --soft:#5c6166; --grid:#e1e3e5; --axis:#9aa0a6;
  --good:#1a7f37; --warning:#9a6700; --bad:#c62f2f; --heat:#0b62a8; --on-heat:#ffffff;
  --series-1:#0b62a8; --series-2:#d95f02; --series-3:#1b8a5a; --series-4:#b0478f; --series-5:#6a5acd; --series-6:#b08800;
  --series-7:#3aa0c9; --series-8:#7a7f85; }
@media (prefers-color-scheme: dark) { :root { --ground:#16181b; --panel:#1d2024; --ink:#e6e7e9; --soft:#a2a8ae; --grid:#31353a; --axis:#6b7177;
  --good:#57c478; --warning:#e0b24a; --bad:#ff7b72; --heat:#5db0f0; --on-heat:#0c1116;
  --series-1:#5db0f0; --series-2:#f28e3c; --series-3:#4cc38a; --series-4:#dd86c3; --series-5:#a598f5; --series-6:#d8b33c;
  --series-7:#6fcbe8; --series-8:#9ba1a7; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--grid); padding-bottom: .25rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .4rem; } p { margin: .5rem 0; } .subtitle, footer { color: var(--soft); }
footer { margin-top: 3rem; font-size: .85rem; border-top: 1px solid var(--grid); padding-top: .6rem; }
.scroll { overflow-x: auto; margin: .8rem 0; } table { border-collapse: collapse; font-size: .88rem; min-width: 40%; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; } th, td { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid var(--grid); font-weight: 600; } td { border-bottom: 1px solid var(--grid); }
.right { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--panel); border: 1px solid var(--grid); border-radius: 6px; padding: .7rem .9rem; overflow-x: auto; font-size: .85rem; }
figure { margin: 1rem 0; background: var(--panel); border: 1px solid var(--grid); border-radius: 8px; padding: 1rem; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 36rem; height: auto; } svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg .label { fill: var(--soft); } svg .chart-title { font-size: 13px; font-weight: 600; } svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--axis); }
svg .limit { stroke: var(--bad); stroke-dasharray: 5 3; stroke-width: 1.5; } svg .heat { fill: var(--heat); } svg .empty { fill: none; stroke: var(--grid); } svg .on-heat { fill: var(--on-heat); }
ul, ol { padding-left: 1.3rem; } li { margin: .35rem 0; } .tag { font-weight: 600; } .note { color: var(--soft); font-size: .85em; }
.finding { display: grid; grid-template-columns: 10.5rem 1fr; gap: .2rem 1rem; padding: .55rem 0; border-bottom: 1px solid var(--grid); }
.finding.plain { grid-template-columns: 1fr; } .finding p { margin: .1rem 0; } .finding .subject { font-weight: 600; }
.status { font-size: .8rem; font-weight: 600; border: 1px solid currentColor; border-radius: 999px; padding: .05rem .6rem; white-space: nowrap; justify-self: start; align-self: start; }
.basis { border-left: 3px solid var(--axis); padding-left: .4rem; font-weight: 600; }
.basis-measured { border-color: var(--good); } .basis-computed { border-color: var(--series-1); } .basis-public { border-color: var(--series-4); } .basis-assumption { border-color: var(--warning); }
@media (max-width: 40rem) { .finding { grid-template-columns: 1fr; } }
@media print { figure, .finding, tr { break-inside: avoid; } }
.good { color: var(--good); } .warning { color: var(--warning); } .bad { color: var(--bad); } .muted { color: var(--soft); }
)css";

const char* tone_class(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "good";
    case Tone::kWarning:
      return "warning";
    case Tone::kBad:
      return "bad";
    case Tone::kMuted:
      return "muted";
    case Tone::kPlain:
      break;
  }
  return "";
}

std::string series_css() {
  std::string css;
  for (int s = 1; s <= kNumSeriesColors; ++s)
    css += fmt::format(
        "svg .fill-{0} {{ fill: var(--series-{0}); }} svg .line-{0} {{ fill: none; stroke: "
        "var(--series-{0}); stroke-width: 2; }}\n",
        s);
  return css;
}

std::string spanned(const std::string& text, const char* css) {
  return *css == '\0' ? escape(text) : fmt::format("<span class=\"{}\">{}</span>", css, escape(text));
}

struct HtmlRenderer {
  std::string out;

  void operator()(const Heading& heading) {
    out += fmt::format("<h{0}>{1}</h{0}>\n", heading.level, escape(heading.text));
  }
  void operator()(const Paragraph& paragraph) {
    out += "<p>" + spanned(paragraph.text, tone_class(paragraph.tone)) + "</p>\n";
  }
  void operator()(const Code& code) { out += "<pre>" + escape(code.text) + "</pre>\n"; }
  void operator()(const Items& items) {
    const char* list = items.numbered ? "ol" : "ul";
    out += fmt::format("<{}>\n", list);
    for (const Item& item : items.items) {
      out += "<li>";
      if (!item.tag.empty())
        out += fmt::format("<span class=\"tag {}\">{}:</span> ", tone_class(item.tone), escape(item.tag));
      out += item.tag.empty() ? spanned(item.text, tone_class(item.tone)) : escape(item.text);
      if (!item.note.empty()) out += fmt::format(" <span class=\"note\">[{}]</span>", escape(item.note));
      out += "</li>\n";
    }
    out += fmt::format("</{}>\n", list);
  }
  void operator()(const Findings& findings) {
    const bool plain = std::all_of(findings.findings.begin(), findings.findings.end(),
                                   [](const Finding& one) { return one.status.empty(); });
    for (const Finding& one : findings.findings) {
      out += plain ? "<div class=\"finding plain\">" : "<div class=\"finding\">";
      if (!plain)
        out += fmt::format("<span class=\"status {}\">{}</span>", tone_class(one.tone), escape(one.status));
      out += "<div>";
      if (!one.subject.empty()) out += "<p class=\"subject\">" + escape(one.subject) + "</p>";
      out += "<p>" + escape(one.text) + "</p>";
      if (!one.basis.empty())
        out +=
            fmt::format("<p class=\"note\"><span class=\"basis basis-{}\">{}</span> {}</p>",
                        one.basis.substr(0, one.basis.find(' ')), escape(one.basis), escape(one.reference));
      out += "</div></div>\n";
    }
  }
  void operator()(const Table& table) {
    out += "<div class=\"scroll\"><table>\n";
    if (!table.caption.empty()) out += "<caption>" + escape(table.caption) + "</caption>\n";
    out += "<thead><tr>";
    for (const Column& column : table.columns)
      out += fmt::format("<th{}>{}</th>", column.align == Align::kRight ? " class=\"right\"" : "",
                         escape(column.title));
    out += "</tr></thead>\n<tbody>\n";
    for (const auto& row : table.rows) {
      out += "<tr>";
      for (std::size_t c = 0; c < table.columns.size(); ++c) {
        const Cell cell = c < row.size() ? row[c] : Cell();
        out += fmt::format("<td{}>{}</td>", table.columns[c].align == Align::kRight ? " class=\"right\"" : "",
                           spanned(cell.text, tone_class(cell.tone)));
      }
      out += "</tr>\n";
    }
    out += "</tbody></table></div>\n";
  }
  template <class Chart>
  void operator()(const Chart& chart) {
    out += "<figure>" + render_svg(chart) + "</figure>\n";
  }
};

}  // namespace

std::string render_html(const Document& document) {
  HtmlRenderer renderer;
  for (const Block& block : document.blocks) std::visit(renderer, block);
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>{1}{2}</style></head>\n<body><main>\n<h1>{0}</"
      "h1>\n{3}{4}<footer>pivot {5} "
      "({6})</footer>\n</main></body></html>\n",
      escape(document.title), kStyle, series_css(),
      document.subtitle.empty() ? "" : "<p class=\"subtitle\">" + escape(document.subtitle) + "</p>\n",
      renderer.out, kVersion, kCommit);
}

}  // namespace pivot::report
