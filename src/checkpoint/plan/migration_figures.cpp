// The numbers of both sides next to each other.
#include <fmt/format.h>

#include "base/report/units.h"
#include "checkpoint/plan/migration.h"

namespace pivot {

namespace {

using report::format_bytes;
using report::format_rate;
using report::format_seconds;
using report::format_tokens;

std::string head_name(const CheckpointFormats& formats) {
  if (formats.head == HeadKind::kNone) return "none";
  return fmt::format("{}, {} stage{}, experts {}", formats.head == HeadKind::kMtp ? "MTP" : "DSpark",
                     formats.draft_stages, formats.draft_stages == 1 ? "" : "s",
                     to_string(formats.draft_experts));
}

const Evaluation* best_of(const MigrationSide& side) {
  if (!side.plan || !side.plan->recommendation) return nullptr;
  return &side.plan->evaluations[side.plan->recommendation->best];
}

}  // namespace

void add_figures(const MigrationInput& input, Migration& migration) {
  const auto row = [&](std::string figure, std::string a, std::string b, Source source) {
    migration.figures.push_back({std::move(figure), std::move(a), std::move(b), std::move(source)});
  };
  const MigrationSide& a = input.a;
  const MigrationSide& b = input.b;
  const bool headers = a.headers && b.headers;
  const Source lists = headers ? Source{Basis::kMeasured, "headers of both"}
                               : Source{Basis::kComputed, "config and formats where headers are missing"};
  row("size on disk", format_bytes(static_cast<double>(a.data_bytes)),
      format_bytes(static_cast<double>(b.data_bytes)), lists);
  row("routed experts", to_string(a.formats.experts), to_string(b.formats.experts), lists);
  row("draft head", head_name(a.formats), head_name(b.formats), lists);
  const Evaluation* left = best_of(a);
  const Evaluation* right = best_of(b);
  if (left != nullptr && right != nullptr) {
    const Source memory = {Basis::kComputed, "memory plan"};
    const Source roofline = {Basis::kComputed, "roofline, a ceiling"};
    const auto pair = [&](std::string figure, const Source& source, auto&& value) {
      row(std::move(figure), value(*left), value(*right), source);
    };
    pair("recommended layout", roofline, [](const Evaluation& one) { return one.arrangement.name(); });
    pair("weights of the fullest GPU", memory,
         [](const Evaluation& one) { return format_bytes(static_cast<double>(one.memory.weights())); });
    pair("KV capacity, all GPUs", memory, [](const Evaluation& one) {
      return format_tokens(static_cast<double>(one.capacity_tokens)) + " tokens";
    });
    pair("decode, all GPUs", roofline,
         [](const Evaluation& one) { return format_rate(one.total_decode_tokens_per_second) + " tok/s"; });
    pair("one stream", roofline,
         [](const Evaluation& one) { return format_rate(one.single.tokens_per_second()) + " tok/s"; });
    pair("prefill, all GPUs", roofline,
         [](const Evaluation& one) { return format_rate(one.total_prefill_tokens_per_second) + " tok/s"; });
  }
  const auto load = [&](const MigrationSide& side) {
    return format_seconds(static_cast<double>(side.data_bytes) / input.load_bytes_per_second);
  };
  row("load into GPU memory", load(a), load(b),
      {Basis::kAssumption,
       fmt::format("{}/s from disk; --load-rate takes yours", format_bytes(input.load_bytes_per_second))});
}

}  // namespace pivot
