#include "recall/runner.h"

#include <algorithm>

#include "base/check.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {
namespace {

// Tokens of other text before going back: more than any ring holds, so that nothing of the prompt's end is
// left by chance.
constexpr std::int64_t kDetourTokens = 300;

}  // namespace

std::vector<LayerFidelity> summarize(const std::vector<QueryFidelity>& queries, TokenRange value) {
  std::map<std::int32_t, std::int64_t> asked;  // queries that predict the value
  std::map<std::int32_t, LayerFidelity> layers;
  for (const QueryFidelity& query : queries) {
    LayerFidelity& layer = layers[query.layer];
    if (layer.queries++ == 0) layer = {query.layer, 1, 0, 0, 0, 0, 0, 1, -1, -1, 0};
    const bool limited = query.selected < query.visible;
    layer.limited += limited ? 1 : 0;
    layer.overlap += query.overlap;
    layer.margin += limited ? query.margin : 0;
    layer.entry_mass += query.entry_mass;
    layer.total_mass += query.total_mass;
    layer.worst_overlap = std::min(layer.worst_overlap, query.overlap);
    if (value.begin < value.end && (query.position < value.begin || query.position >= value.end)) continue;
    ++asked[query.layer];
    layer.fact_rank = std::max(layer.fact_rank, query.fact_rank);
    layer.fact_exact_rank = std::max(layer.fact_exact_rank, query.fact_exact_rank);
    layer.fact_selected += query.fact_selected ? 1 : 0;
  }
  std::vector<LayerFidelity> result;
  for (auto& [index, layer] : layers) {
    const auto n = static_cast<double>(layer.queries);
    layer.overlap /= n, layer.entry_mass /= n, layer.total_mass /= n;
    layer.fact_selected = asked[index] == 0 ? 1 : layer.fact_selected / static_cast<double>(asked[index]);
    if (layer.limited > 0) layer.margin /= static_cast<double>(layer.limited);
    result.push_back(layer);
  }
  return result;
}

Result<CaseResult> CaseRunner::run(const Case& test) const {
  PIVOT_CHECK(session != nullptr && tokenizer != nullptr && !test.prompt.empty());
  session->reset();
  if (probe != nullptr) probe->begin_case(test);
  GenerateOptions options;
  options.max_new_tokens = test.answer_tokens;
  options.stop_tokens = stop_tokens;
  options.cancel = cancel;
  const std::span<const TokenId> prompt(test.prompt);
  const auto room = session->max_context() - static_cast<std::int64_t>(prompt.size());
  if (path == Path::kRestored && prompt.size() > 1) {
    if (room < kDetourTokens)
      return fail(ErrorCode::kContextOverflow,
                  "a restored prompt of {} tokens needs {} more of context; the session has {}",
                  prompt.size(), kDetourTokens, session->max_context());
    if (probe != nullptr) probe->pause();
    PIVOT_TRY_VOID(session->prefill(prompt.first(prompt.size() - 1), {}, cancel));
    const std::vector<TokenId> detour(static_cast<std::size_t>(kDetourTokens), prompt[prompt.size() / 2]);
    PIVOT_TRY_VOID(session->prefill(detour, {}, cancel));
    if (probe != nullptr) probe->resume();
  }
  PIVOT_TRY(const GenerationResult generated, session->generate(prompt, options));
  if (generated.reason == FinishReason::kCancelled) return fail(ErrorCode::kCancelled, "stopped");

  CaseResult result;
  result.id = test.spec.id();
  result.spec = test.spec;
  result.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  result.facts = test.facts;
  result.question = test.question;
  result.expected = test.expected;
  std::vector<TokenId> ids;
  for (const SampledToken& token : generated.tokens) ids.push_back(token.id);
  result.answer = tokenizer->decode(ids, /*skip_special=*/true);
  result.score = score_answer(test, result.answer);
  result.generated_tokens = generated.timings.generated_tokens;
  result.prefill_seconds = generated.timings.prefill_seconds;
  result.decode_seconds = generated.timings.decode_seconds;
  result.finish_reason = to_string(generated.reason);
  if (probe != nullptr) {
    // The token at index i of the answer is predicted from the position before its own.
    TokenRange predicting;
    const std::vector<TokenId> value = tokenizer->encode(test.expected.front());
    const auto at = std::search(ids.begin(), ids.end(), value.begin(), value.end());
    if (at != ids.end()) {
      predicting.begin = result.prompt_tokens + (at - ids.begin()) - 1;
      predicting.end = predicting.begin + static_cast<std::int64_t>(value.size());
    }
    result.fidelity = summarize(probe->fidelity(), predicting);
  }
  return result;
}

}  // namespace pivot::recall
