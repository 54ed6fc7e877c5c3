// pivot bench decode and prefill.
#include <algorithm>

#include "base/report/units.h"
#include "bench/bench.h"
#include "bench/cost.h"
#include "checkpoint/flash_config.h"
#include "checkpoint/plan/flops.h"

namespace pivot::cli {
namespace {

using Json = nlohmann::ordered_json;
using report::Align;
using report::Cell;
using report::Table;
using report::Tone;

// Half of what the hardware allows is where a reader should look twice.
Tone tone_of(double share) {
  return share >= 0.75 ? Tone::kGood : share >= 0.5 ? Tone::kPlain : Tone::kWarning;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }

Json breakdown_json(const Breakdown& breakdown) {
  Json rows = Json::array();
  for (const Breakdown::Row& row : breakdown.rows)
    rows.push_back({{"operator", row.op},
                    {"calls", row.calls_per_step},
                    {"milliseconds", row.seconds_per_step * 1e3},
                    {"share", row.seconds_per_step / breakdown.operator_seconds}});
  return {{"operators", rows},
          {"operators_ms", breakdown.operator_seconds * 1e3},
          {"step_ms", breakdown.step_seconds * 1e3},
          {"step_over_operators", breakdown.step_seconds / breakdown.operator_seconds}};
}

Table breakdown_table(const Breakdown& breakdown, const std::string& what) {
  Table table;
  table.caption =
      fmt::format("{}: {:.3f} ms in operators, {:.3f} ms in all: {:.2f} times the sum of its parts", what,
                  breakdown.operator_seconds * 1e3, breakdown.step_seconds * 1e3,
                  breakdown.step_seconds / breakdown.operator_seconds);
  table.columns = {
      {"operator", Align::kLeft}, {"calls", Align::kRight}, {"ms", Align::kRight}, {"share", Align::kRight}};
  std::vector<Breakdown::Row> rows = breakdown.rows;
  std::stable_sort(rows.begin(), rows.end(), [](const Breakdown::Row& a, const Breakdown::Row& b) {
    return a.seconds_per_step > b.seconds_per_step;
  });
  for (const Breakdown::Row& row : rows)
    table.rows.push_back({row.op, fmt::format("{:.0f}", row.calls_per_step),
                          milliseconds(row.seconds_per_step),
                          report::format_percent(row.seconds_per_step / breakdown.operator_seconds)});
  return table;
}

// The whole model's figures from a few layers': marked for what they are.
Json extrapolation_json(double seconds, double tokens, std::int64_t from_layers) {
  return {{"layers", flash_config().num_hidden_layers},
          {"from_layers", from_layers},
          {"milliseconds", seconds * 1e3},
          {"tokens_per_second", tokens / seconds},
          {"measured", false}};
}

}  // namespace

Json decode_json(const DecodeResult& r, std::int64_t context, std::int32_t batch, double bandwidth) {
  const double roofline = bandwidth / r.bytes_per_step;
  return {{"context", context},
          {"batch", batch},
          {"step_ms", r.step_seconds * 1e3},
          {"step_ms_min", r.best_step_seconds * 1e3},
          {"forwards_per_second", 1.0 / r.step_seconds},
          {"tokens_per_second", batch / r.step_seconds},
          {"bytes_per_step", r.bytes_per_step},
          {"experts_per_layer", r.experts_per_layer},
          {"roofline_tokens_per_second", batch * roofline},
          {"share_of_roofline", 1.0 / r.step_seconds / roofline},
          {"logits_finite", r.logits_finite}};
}

Result<int> run_decode(const BenchOptions& given) {
  BenchOptions options = given;
  if (options.contexts.empty()) options.contexts = {4096};
  if (options.batches.empty()) options.batches = {1};
  PIVOT_TRY(Bench bench, open_bench(options, "decode"));
  bench.json["steps"] = options.steps;
  const bool few_layers = bench.extrapolate_from_layers > 0;
  Table table;
  table.caption = "Decode: single-token steps; the roofline is the bytes of a step at the rate of reading";
  for (const char* title :
       {"context", "batch", "ms/step", "best", "steps/s", "tok/s", "MB/step", "roofline", "share"})
    table.columns.push_back({title, Align::kRight});
  if (few_layers) {
    table.columns.push_back({"layer tok/s", Align::kRight});
    table.columns.push_back({"share", Align::kRight});
    table.columns.push_back({"43 layers, extrapolated", Align::kRight});
  }
  table.columns.push_back({"", Align::kLeft});
  std::vector<Table> breakdowns;
  for (const std::int64_t context : options.contexts)
    for (const std::int32_t batch : options.batches) {
      DecodeCase wanted{context, batch, options.steps, false};
      wanted.breakdown = options.breakdown || (few_layers && !bench.on_cuda());
      show_status(fmt::format("timing steps of {} at {}", batch, context));
      const Result<DecodeResult> result = bench_decode(bench.backend, bench.weights, bench.knobs, wanted);
      if (!result) {  // the other sizes may fit
        bench.json["results"].push_back(
            {{"context", context}, {"batch", batch}, {"error", result.error().to_string()}});
        std::vector<Cell> row = {std::to_string(context), std::to_string(batch)};
        row.resize(table.columns.size());
        row.back() = Cell(result.error().to_string(), Tone::kBad);
        table.rows.push_back(std::move(row));
        continue;
      }
      Json row = decode_json(*result, context, batch, bench.read_bytes_per_second);
      const double share = row["share_of_roofline"].get<double>();
      std::vector<Cell> cells = {report::format_count(context),
                                 std::to_string(batch),
                                 milliseconds(result->step_seconds),
                                 milliseconds(result->best_step_seconds),
                                 fmt::format("{:.1f}", 1.0 / result->step_seconds),
                                 fmt::format("{:.1f}", batch / result->step_seconds),
                                 fmt::format("{:.1f}", result->bytes_per_step * 1e-6),
                                 fmt::format("{:.1f}", row["roofline_tokens_per_second"].get<double>()),
                                 Cell(report::format_percent(share), tone_of(share))};
      if (few_layers) {
        const auto layers = static_cast<double>(bench.extrapolate_from_layers);
        const double outside = result->breakdown ? result->breakdown->outside_layers_seconds : 0.0;
        const double layer = std::max(result->step_seconds - outside, 1e-9) / layers;
        row["layer_ms"] = layer * 1e3;
        row["tokens_per_second_of_one_layer"] = batch / layer;
        const double layer_bytes = (result->bytes_per_step - bytes_of(bench.weights->head)) / layers;
        const double layer_share = layer_bytes / bench.read_bytes_per_second / layer;
        row["layer_bytes"] = layer_bytes;
        row["layer_share_of_roofline"] = layer_share;
        cells.push_back(fmt::format("{:.1f}", batch / layer));
        cells.push_back(Cell(report::format_percent(layer_share), tone_of(layer_share)));
        std::string whole = "-";
        if (result->breakdown) {
          const double seconds = extrapolate_seconds(*result->breakdown, flash_config());
          row["extrapolated"] = extrapolation_json(seconds, batch, bench.extrapolate_from_layers);
          whole = fmt::format("{:.1f} ms, {:.2f} tok/s", seconds * 1e3, batch / seconds);
        }
        cells.push_back(Cell(whole, Tone::kMuted));
      }
      if (!result->logits_finite) {
        cells.resize(table.columns.size() - 1);
        cells.push_back(Cell("logits are not finite", Tone::kBad));
      }
      table.rows.push_back(std::move(cells));
      if (options.breakdown) {
        row["breakdown"] = breakdown_json(*result->breakdown);
        breakdowns.push_back(
            breakdown_table(*result->breakdown, fmt::format("A step of {} at {}", batch, context)));
        if (bench.checkpoint && batch == 1) {
          PIVOT_TRY(const double seconds,
                    bench_session_step(bench.backend, bench.weights, bench.knobs, context, options.steps));
          row["session_step_ms"] = seconds * 1e3;
          row["session_step_over_operators"] = seconds / result->breakdown->operator_seconds;
          breakdowns.back().caption +=
              fmt::format("; as `generate` makes it, with the choice of the token: {:.3f} ms, {:.2f} times",
                          seconds * 1e3, seconds / result->breakdown->operator_seconds);
        }
      }
      bench.json["results"].push_back(row);
    }
  bench.document.add(std::move(table));
  for (Table& breakdown : breakdowns) bench.document.add(std::move(breakdown));
  return finish_bench(options, bench);
}

Result<int> run_prefill(const BenchOptions& options) {
  PIVOT_TRY(Bench bench, open_bench(options, "prefill"));
  const bool few_layers = bench.extrapolate_from_layers > 0;
  Table table;
  table.caption = "Prefill: a prompt from its first token";
  for (const char* title : {"tokens", "chunk", "s", "tok/s", "GFLOP", "GFLOP/s"})
    table.columns.push_back({title, Align::kRight});
  if (bench.floors) table.columns.push_back({"share of fp32 fma", Align::kRight});
  if (few_layers) table.columns.push_back({"43 layers, extrapolated", Align::kRight});
  table.columns.push_back({"", Align::kLeft});
  std::vector<Table> breakdowns;
  const std::vector<std::int64_t> lengths =
      options.tokens.empty() ? std::vector<std::int64_t>{8192} : options.tokens;
  for (const std::int64_t tokens : lengths) {
    PrefillCase wanted{tokens, options.chunk, false};
    wanted.breakdown = options.breakdown || (few_layers && !bench.on_cuda());
    show_status(fmt::format("timing a prompt of {}", tokens));
    const Result<PrefillResult> result = bench_prefill(bench.backend, bench.weights, bench.knobs, wanted);
    const std::int64_t chunk = std::min<std::int64_t>(options.chunk, tokens);
    if (!result) {
      bench.json["results"].push_back({{"tokens", tokens}, {"error", result.error().to_string()}});
      std::vector<Cell> row = {std::to_string(tokens), std::to_string(chunk)};
      row.resize(table.columns.size());
      row.back() = Cell(result.error().to_string(), Tone::kBad);
      table.rows.push_back(std::move(row));
      continue;
    }
    // Every position passes the layers; the head is computed for the last one of each chunk.
    const double heads = static_cast<double>((tokens + chunk - 1) / chunk);
    const double flops = prefill_flops(bench.weights->config, tokens).total() +
                         heads * product_cost(bench.weights->head, 1).flops;
    Json row = {{"tokens", tokens},
                {"chunk", chunk},
                {"seconds", result->seconds},
                {"tokens_per_second", static_cast<double>(tokens) / result->seconds},
                {"flops", flops},
                {"flops_per_second", flops / result->seconds},
                {"logits_finite", result->logits_finite}};
    std::vector<Cell> cells = {report::format_count(tokens),
                               report::format_count(chunk),
                               fmt::format("{:.3f}", result->seconds),
                               fmt::format("{:.1f}", static_cast<double>(tokens) / result->seconds),
                               fmt::format("{:.1f}", flops * 1e-9),
                               fmt::format("{:.1f}", flops / result->seconds * 1e-9)};
    if (bench.floors) {
      const double share = flops / result->seconds / bench.floors->peak("fp32 fma");
      row["share_of_fma_peak"] = share;
      cells.push_back(Cell(report::format_percent(share), tone_of(share)));
    }
    if (few_layers) {
      std::string whole = "-";
      if (result->breakdown) {
        const double seconds = extrapolate_seconds(*result->breakdown, flash_config());
        row["extrapolated"] =
            extrapolation_json(seconds, static_cast<double>(tokens), bench.extrapolate_from_layers);
        whole = fmt::format("{:.2f} s, {:.2f} tok/s", seconds, static_cast<double>(tokens) / seconds);
      }
      cells.push_back(Cell(whole, Tone::kMuted));
    }
    if (!result->logits_finite) {
      cells.resize(table.columns.size() - 1);
      cells.push_back(Cell("logits are not finite", Tone::kBad));
    }
    table.rows.push_back(std::move(cells));
    if (options.breakdown) {
      row["breakdown"] = breakdown_json(*result->breakdown);
      breakdowns.push_back(breakdown_table(*result->breakdown, fmt::format("A prompt of {}", tokens)));
    }
    bench.json["results"].push_back(row);
  }
  bench.document.add(std::move(table));
  for (Table& breakdown : breakdowns) bench.document.add(std::move(breakdown));
  return finish_bench(options, bench);
}

}  // namespace pivot::cli
