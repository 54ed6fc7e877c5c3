// pivot bench ladder.
#include "base/installation.h"
#include "base/report/units.h"
#include "bench/bench.h"
#include "bench/ladder.h"
#include "checkpoint/load.h"

namespace pivot::cli {

using report::Align;
using report::Table;

Result<int> run_ladder(const BenchOptions& given) {
  BenchOptions options = given;
  if (options.contexts.empty()) options.contexts = {4096};
  if (options.batches.empty()) options.batches = {1};
  if (options.prompt < 2 || options.prompt > 4096)
    return fail(ErrorCode::kInvalidArgument, "--prompt {} is not possible; 2 to 4096 are", options.prompt);
  PIVOT_TRY(const std::filesystem::path folder, embedded_model_dir());
  LoadOptions load;
  load.draft = false;
  PIVOT_TRY(const std::shared_ptr<const ModelWeights> small, load_model(folder.string(), load));
  PIVOT_TRY(Bench bench, open_bench(options, "ladder"));
  LadderCase wanted{{options.contexts.front(), options.batches.front(), options.steps}, {}};
  std::uint32_t state = 1;
  for (std::int32_t i = 0; i < options.prompt; ++i) {
    state = state * 1664525u + 1013904223u;
    wanted.prompt.push_back(
        static_cast<std::int32_t>((state >> 8) % static_cast<std::uint32_t>(small->config.vocab_size)));
  }
  PIVOT_TRY(const std::vector<Rung> rungs,
            bench_ladder(bench.backend, bench.weights, small, bench.knobs, wanted));
  Table table;
  table.caption = fmt::format("context {}, batch {}; logits of the embedded model against the oracle",
                              wanted.decode.context, wanted.decode.batch);
  table.columns = {{"rung", Align::kLeft},   {"ms/step", Align::kRight},     {"tok/s", Align::kRight},
                   {"share", Align::kRight}, {"relative L2", Align::kRight}, {"largest", Align::kRight},
                   {"argmax", Align::kRight}};
  for (const Rung& rung : rungs) {
    nlohmann::ordered_json row =
        decode_json(rung.speed, wanted.decode.context, wanted.decode.batch, bench.read_bytes_per_second);
    const double share = row["share_of_roofline"].get<double>();
    row["rung"] = rung.name;
    row["effect"] = rung.effect;
    row["numerics"] = {{"relative_l2", rung.numerics.relative_l2},
                       {"largest_difference", rung.numerics.largest},
                       {"rows", rung.numerics.rows},
                       {"same_argmax", rung.numerics.same_argmax}};
    bench.json["results"].push_back(row);
    table.rows.push_back({rung.name, fmt::format("{:.3f}", rung.speed.step_seconds * 1e3),
                          fmt::format("{:.1f}", wanted.decode.batch / rung.speed.step_seconds),
                          report::format_percent(share), fmt::format("{:.2e}", rung.numerics.relative_l2),
                          fmt::format("{:.2e}", rung.numerics.largest),
                          fmt::format("{} of {}", rung.numerics.same_argmax, rung.numerics.rows)});
  }
  bench.document.add(std::move(table));
  return finish_bench(options, bench);
}

}  // namespace pivot::cli
