#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/report/units.h"
#include "checkpoint/plan/plan.h"

namespace pivot {

namespace {

using report::Align;
using report::Cell;
using report::Document;
using report::format_bytes;
using report::format_count;
using report::format_number;
using report::format_percent;
using report::format_rate;
using report::format_seconds;
using report::format_tokens;
using report::Table;
using report::Tone;

constexpr double kGib = 1024.0 * 1024 * 1024;

std::vector<double> context_grid(const ModelConfig& config) {
  std::vector<double> grid;
  for (double context : {1024.0, 4096.0, 16384.0, 65536.0, 131072.0, 524288.0, 1048576.0})
    if (context <= static_cast<double>(config.max_position_embeddings)) grid.push_back(context);
  if (grid.empty()) grid.push_back(static_cast<double>(config.max_position_embeddings));
  return grid;
}

void add_headline(Document& document, const Plan& plan) {
  document.heading("Recommendation");
  if (!plan.recommendation) {
    document.paragraph(
        fmt::format("Nothing fits: {} of weights on {} x {} with {} each.",
                    format_bytes(static_cast<double>(plan.model.bytes.total())), plan.machine.num_gpus,
                    plan.machine.gpu.name, format_bytes(plan.machine.gpu.memory_bytes())),
        Tone::kBad);
    report::Items items;
    for (const Evaluation& evaluation : plan.evaluations)
      items.items.push_back({evaluation.arrangement.name(), evaluation.obstacle, "", Tone::kBad});
    document.add(std::move(items));
    return;
  }
  document.paragraph(plan.evaluations[plan.recommendation->best].arrangement.name(), Tone::kGood);
  report::Items items;
  for (const std::string& reason : plan.recommendation->reasons)
    items.items.push_back({"", reason, "", Tone::kPlain});
  document.add(std::move(items));
}

void add_layouts(Document& document, const Plan& plan) {
  document.heading("Layouts");
  Table table;
  table.caption = fmt::format(
      "At the roofline, {} tokens a request ({} of them answer), {} requests at once. A real engine reaches "
      "a share of these; the order is what counts.",
      format_count(plan.workload.context_tokens), plan.workload.output_tokens, plan.workload.concurrency);
  table.columns = {
      {"layout", Align::kLeft},         {"GiB/GPU", Align::kRight},        {"KV tokens", Align::kRight},
      {"admitted", Align::kRight},      {"1 stream tok/s", Align::kRight}, {"decode tok/s", Align::kRight},
      {"prefill tok/s", Align::kRight}, {"first token", Align::kRight},    {"requests/s", Align::kRight}};
  std::vector<std::size_t> order(plan.evaluations.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Evaluation& left = plan.evaluations[a];
    const Evaluation& right = plan.evaluations[b];
    return left.fits != right.fits ? left.fits : left.requests_per_second > right.requests_per_second;
  });
  for (const std::size_t i : order) {
    const Evaluation& one = plan.evaluations[i];
    const bool best = plan.recommendation && plan.recommendation->best == i;
    const std::string gib = format_number(static_cast<double>(one.memory.total()) / kGib);
    if (!one.fits) {
      table.rows.push_back(
          {{one.arrangement.name(), Tone::kMuted}, {gib, Tone::kMuted}, {"does not fit", Tone::kBad}});
      continue;
    }
    std::string name = one.arrangement.name();
    if (one.memory.resident_experts < 1)
      name += fmt::format(" ({} of experts resident)", format_percent(one.memory.resident_experts));
    table.rows.push_back({{name, best ? Tone::kGood : Tone::kPlain},
                          gib,
                          format_tokens(static_cast<double>(one.capacity_tokens)),
                          format_number(one.admitted),
                          format_rate(one.single.tokens_per_second()),
                          format_rate(one.total_decode_tokens_per_second),
                          format_rate(one.total_prefill_tokens_per_second),
                          format_seconds(one.first_token_seconds),
                          format_number(one.requests_per_second)});
  }
  document.add(std::move(table));

  report::BarChart chart{
      "Requests per second at the roofline", "requests/s", {}, {{"requests/s", {}}}, std::nullopt, ""};
  for (const std::size_t i : order) {
    if (!plan.evaluations[i].fits) continue;
    chart.categories.push_back(plan.evaluations[i].arrangement.name());
    chart.series[0].values.push_back(plan.evaluations[i].requests_per_second);
  }
  if (!chart.categories.empty()) document.add(std::move(chart));
}

void add_memory(Document& document, const Plan& plan) {
  document.heading("Memory of the fullest GPU");
  const std::size_t best = plan.recommendation ? plan.recommendation->best : 0;
  if (plan.evaluations.empty()) return;
  const Evaluation& shown = plan.evaluations[best];
  Table table;
  table.caption = fmt::format("{}, batch of {} at {} tokens each per replica; weights {}",
                              shown.arrangement.name(), format_number(shown.loaded.batch),
                              format_count(plan.workload.context_tokens), plan.bytes_basis);
  table.columns = {{"class", Align::kLeft}, {"bytes", Align::kRight}, {"size", Align::kRight}};
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    table.rows.push_back({std::string(memory_class_name(memory_class)),
                          format_count(shown.memory.of(memory_class)),
                          format_bytes(static_cast<double>(shown.memory.of(memory_class)))});
  }
  table.rows.push_back(
      {"total", format_count(shown.memory.total()), format_bytes(static_cast<double>(shown.memory.total()))});
  table.rows.push_back({"available", format_count(shown.memory.available),
                        format_bytes(static_cast<double>(shown.memory.available))});
  if (shown.memory.host_bytes > 0)
    table.rows.push_back({"in host memory, per replica", format_count(shown.memory.host_bytes),
                          format_bytes(static_cast<double>(shown.memory.host_bytes))});
  document.add(std::move(table));

  struct Group {
    const char* name;
    std::vector<MemoryClass> classes;
  };
  const std::vector<Group> groups = {
      {"routed experts", {MemoryClass::kExperts}},
      {"other split weights", {MemoryClass::kShardedWeights}},
      {"replicated weights", {MemoryClass::kReplicatedWeights, MemoryClass::kEmbedding}},
      {"draft head", {MemoryClass::kDraft}},
      {"KV and index keys",
       {MemoryClass::kRatio4Rows, MemoryClass::kRatio128Rows, MemoryClass::kIndexKeys,
        MemoryClass::kPagePadding}},
      {"rings and states", {MemoryClass::kRings, MemoryClass::kCompressorState}},
      {"workspace, runtime", {MemoryClass::kWorkspace, MemoryClass::kRuntime}},
  };
  report::BarChart chart{"Memory of the fullest GPU by layout",
                         "GiB",
                         {},
                         {},
                         plan.machine.gpu.memory_gib.value,
                         plan.machine.gpu.id};
  for (const Group& group : groups) chart.series.push_back({group.name, {}});
  for (const Evaluation& one : plan.evaluations) {
    chart.categories.push_back(one.arrangement.name());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      double bytes = 0;
      for (const MemoryClass memory_class : groups[g].classes)
        bytes += static_cast<double>(one.memory.of(memory_class));
      chart.series[g].values.push_back(bytes / kGib);
    }
  }
  document.add(std::move(chart));
}

void add_cache(Document& document, const Plan& plan) {
  document.heading("KV cache");
  const CacheBytes bytes = cache_bytes(plan.model.config, plan.model.cache, plan.model.draft_stages);
  Table table;
  table.caption = fmt::format(
      "One sequence, all layers; KV rows {} ({} B), index keys {} ({} B)", to_string(plan.model.cache.kv),
      kv_row_bytes(plan.model.config, plan.model.cache.kv), to_string(plan.model.cache.index),
      index_key_bytes(plan.model.config, plan.model.cache.index));
  table.columns = {
      {"component", Align::kLeft}, {"bytes per token", Align::kRight}, {"bytes per sequence", Align::kRight}};
  const auto per_token = [](double value) { return fmt::format("{:.2f}", value); };
  table.rows.push_back({"ratio-4 rows", per_token(bytes.ratio4_per_token), ""});
  table.rows.push_back({"ratio-128 rows", per_token(bytes.ratio128_per_token), ""});
  table.rows.push_back({"index keys", per_token(bytes.index_per_token), ""});
  table.rows.push_back({"sum", per_token(bytes.per_token()), ""});
  table.rows.push_back({"page padding", per_token(bytes.padding_per_token), ""});
  table.rows.push_back({"window rings", "", format_count(bytes.rings)});
  if (bytes.draft_rings > 0) table.rows.push_back({"draft rings", "", format_count(bytes.draft_rings)});
  table.rows.push_back({"compressor state (fp32)", "", format_count(bytes.compressor_state)});
  document.add(std::move(table));
}

// The layouts without separate prefill that fit, for curves.
std::vector<const Evaluation*> plain_layouts(const Plan& plan) {
  std::vector<const Evaluation*> list;
  for (const Evaluation& one : plan.evaluations)
    if (one.fits && !one.arrangement.prefill) list.push_back(&one);
  return list;
}

void add_decode(Document& document, const Plan& plan) {
  const auto layouts = plain_layouts(plan);
  if (layouts.empty()) return;
  document.heading("Decode roofline");
  const Evaluation& best = plan.evaluations[plan.recommendation->best];
  const DecodeStep& step = best.loaded;
  const auto context = static_cast<double>(plan.workload.context_tokens);
  document.paragraph(fmt::format(
      "One step of one {} replica with {} sequences at {} tokens:", best.arrangement.decode.name(),
      format_number(step.batch), format_tokens(context)));
  document.add(report::Code{fmt::format(
      "seconds = max(bytes / bandwidth, FLOPs / rate) + messages{}\n"
      "        = max(({} weights + {} cache) / {} GB/s, {} GFLOP / rate) + messages\n"
      "        = max({}, {}) + {}{}\n"
      "        = {}  ->  {} tok/s per replica, {} tok/s in all\n"
      "distinct experts per layer = E (1 - ((E - k) / E)^B) = {} of {}",
      step.host_seconds > 0 ? " + experts from host memory" : "", format_bytes(step.weight_bytes),
      format_bytes(step.cache_bytes), format_number(plan.machine.gpu.bandwidth_gbs.value, 4),
      format_number(step.flops / 1e9, 4), format_seconds(step.memory_seconds),
      format_seconds(step.compute_seconds), format_seconds(step.message_seconds),
      step.host_seconds > 0 ? " + " + format_seconds(step.host_seconds) : "", format_seconds(step.seconds()),
      format_rate(step.tokens_per_second()), format_rate(best.total_decode_tokens_per_second),
      format_number(distinct_experts(plan.model.config, step.batch), 4),
      plan.model.config.n_routed_experts)});

  report::LineChart by_context{
      "One stream by context", "context, tokens", "tok/s", true, false, context_grid(plan.model.config), {}};
  for (const Evaluation* one : layouts) {
    if (one->arrangement.decode.parallelism == Parallelism::kPipeline) continue;
    report::Series series{one->arrangement.decode.name(), {}};
    DecodeAssumptions assumptions;
    assumptions.resident_experts = one->memory.resident_experts;
    for (const double at : by_context.x)
      series.values.push_back(decode_step(plan.model, plan.machine, one->arrangement.decode.parallelism,
                                          one->arrangement.decode.gpus, 1, at, assumptions)
                                  .tokens_per_second());
    by_context.series.push_back(std::move(series));
  }
  document.add(std::move(by_context));
  report::LineChart by_batch{
      fmt::format("Whole machine by requests at once, {} tokens each", format_tokens(context)),
      "requests at once",
      "tok/s",
      true,
      true,
      {1, 2, 4, 8, 16, 32, 64, 128, 256},
      {}};
  for (const Evaluation* one : layouts) {
    report::Series series{one->arrangement.name(), {}};
    DecodeAssumptions assumptions;
    assumptions.resident_experts = one->memory.resident_experts;
    for (const double requests : by_batch.x) {
      const double used = std::min<double>(one->arrangement.decode.replicas, requests);
      const double batch = std::ceil(requests / one->arrangement.decode.replicas);
      const double room = static_cast<double>(one->memory.capacity_tokens) / context;
      const DecodeStep at = decode_step(plan.model, plan.machine, one->arrangement.decode.parallelism,
                                        one->arrangement.decode.gpus, batch, context, assumptions);
      series.values.push_back(batch > std::max(1.0, room)
                                  ? std::nan("")
                                  : requests / (batch * used) * used * at.tokens_per_second());
    }
    by_batch.series.push_back(std::move(series));
  }
  document.add(std::move(by_batch));

  report::Heatmap map{fmt::format("Tokens per second of one {} replica", best.arrangement.decode.name()),
                      "tok/s",
                      {},
                      {},
                      {},
                      std::nullopt,
                      std::nullopt};
  const std::vector<double> batches = {1, 4, 8, 16, 32, 64, 128};
  for (const double batch : batches) map.column_labels.push_back(fmt::format("B{:.0f}", batch));
  DecodeAssumptions assumptions;
  assumptions.resident_experts = best.memory.resident_experts;
  for (const double at : context_grid(plan.model.config)) {
    map.row_labels.push_back(format_tokens(at) + " tokens");
    for (const double batch : batches) {
      const bool fits = batch * at <= static_cast<double>(best.memory.capacity_tokens);
      map.values.push_back(fits ? decode_step(plan.model, plan.machine, best.arrangement.decode.parallelism,
                                              best.arrangement.decode.gpus, batch, at, assumptions)
                                      .tokens_per_second()
                                : std::nan(""));
    }
  }
  document.add(std::move(map));
}

void add_prefill(Document& document, const Plan& plan) {
  const auto layouts = plain_layouts(plan);
  if (layouts.empty()) return;
  document.heading("Prefill roofline");
  const Evaluation& best = plan.evaluations[plan.recommendation->best];
  const Prefill& prompt = best.prompt;
  document.add(report::Code{fmt::format(
      "seconds = max(FLOPs / GPUs / rate, weight streaming) + messages        ({} tokens on {})\n"
      "        = max({} PFLOP -> {}, {}) + {} = {}  ->  {} tok/s per replica",
      format_count(static_cast<std::int64_t>(prompt.tokens)),
      best.arrangement.prefill ? best.arrangement.prefill->name() : best.arrangement.decode.name(),
      format_number(prompt.flops / 1e15, 3), format_seconds(prompt.compute_seconds),
      format_seconds(prompt.weight_seconds), format_seconds(prompt.message_seconds),
      format_seconds(prompt.steady_seconds()), format_rate(prompt.tokens_per_second()))});
  report::LineChart chart{"Whole machine by prompt length", "prompt, tokens", "tok/s", true, false, {}, {}};
  for (const double length : context_grid(plan.model.config))
    if (length >= 4096) chart.x.push_back(length);
  if (chart.x.empty()) chart.x.push_back(static_cast<double>(plan.model.config.max_position_embeddings));
  for (const Evaluation* one : layouts) {
    if (one->memory.resident_experts < 1) continue;
    report::Series series{one->arrangement.name(), {}};
    for (const double length : chart.x)
      series.values.push_back(prefill(plan.model, plan.machine, one->arrangement.decode.parallelism,
                                      one->arrangement.decode.gpus, static_cast<std::int64_t>(length))
                                  .tokens_per_second() *
                              one->arrangement.decode.replicas);
    chart.series.push_back(std::move(series));
  }
  document.add(std::move(chart));
}

void add_sources(Document& document, const Plan& plan) {
  document.heading("Figures used");
  Table table;
  table.columns = {
      {"figure", Align::kLeft}, {"value", Align::kRight}, {"basis", Align::kLeft}, {"source", Align::kLeft}};
  const auto row = [&](const std::string& name, const Figure& figure, const char* unit) {
    table.rows.push_back(
        {name, fmt::format("{} {}", format_number(figure.value, 4), unit), figure.basis, figure.source});
  };
  const Gpu& gpu = plan.machine.gpu;
  row("memory per GPU", gpu.memory_gib, "GiB");
  row("bandwidth, attainable", gpu.bandwidth_gbs, "GB/s");
  row("bandwidth, published", gpu.bandwidth_spec_gbs, "GB/s");
  row("FP8 rate", gpu.fp8_tflops, "TFLOP/s");
  row("BF16 rate", gpu.bf16_tflops, "TFLOP/s");
  const Link& link = plan.machine.link;
  row(link.name + ", pair", link.pair_gbs, "GB/s");
  row(link.name + ", collective", link.ring_gbs, "GB/s");
  row(link.name + ", across sockets", link.cross_ring_gbs, "GB/s");
  for (const auto& [gpus, figure] : link.all_reduce_us)
    row(fmt::format("all-reduce, {} GPUs", gpus), figure, "us");
  row("all-reduce across sockets", link.cross_all_reduce_us, "us");
  row("host link", link.host_gbs, "GB/s");
  document.add(std::move(table));
  document.heading("Assumptions", 3);
  report::Items items;
  const auto assume = [&](std::string text) {
    items.items.push_back({"", std::move(text), "assumption", Tone::kPlain});
  };
  assume(
      "Tokens route to experts uniformly and independently; real batches touch fewer distinct experts, so "
      "decode can be a little faster.");
  assume(
      "TP: small matrices, embedding and main KV rows on every rank, index keys split by context; two "
      "all-reduces per layer and one gather of logits.");
  assume(fmt::format(
      "PP: layers split evenly, prompts in micro-chunks of {} tokens, boundaries carry {} streams.",
      kPipelineChunkTokens, plan.model.config.hc_mult));
  assume("EP: attention per sequence on one GPU; the busiest GPU gets mean + sqrt(2 mean ln n) experts.");
  assume(
      fmt::format("Runtime: {} per GPU for context, kernels and communication buffers; workspace from shapes "
                  "with chunks of {} tokens.",
                  format_bytes(static_cast<double>(kRuntimeBytes)), kPrefillChunkTokens));
  assume("No speculative decoding, no prefix-cache hits: both raise real throughput for every layout alike.");
  document.add(std::move(items));
}

}  // namespace

Document plan_document(const Plan& plan) {
  Document document;
  document.title =
      fmt::format("Plan for {} on {} x {}", plan.label, plan.machine.num_gpus, plan.machine.gpu.id);
  document.subtitle = fmt::format("{} weights ({}), {}, {} NUMA node{}; hardware {}",
                                  format_bytes(static_cast<double>(plan.model.bytes.total())),
                                  plan.bytes_basis, plan.machine.link.name, plan.machine.numa_nodes,
                                  plan.machine.numa_nodes == 1 ? "" : "s", plan.machine.origin);
  add_headline(document, plan);
  add_layouts(document, plan);
  add_memory(document, plan);
  add_cache(document, plan);
  if (plan.recommendation) {
    add_decode(document, plan);
    add_prefill(document, plan);
  }
  add_sources(document, plan);
  return document;
}

}  // namespace pivot
