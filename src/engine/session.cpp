#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "cache/cache_pool.h"
#include "cache/sequence_state.h"
#include "model/forward.h"

namespace pivot {
namespace {

// Memory that the points to go back to may take, and how many there are at most.
constexpr std::int64_t kRewindBudgetBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMinRewindPoints = 2;
constexpr std::int64_t kMaxRewindPoints = 16;
// Prefix blocks are cut at these multiples (docs/design.md section 4).
constexpr std::int64_t kRewindStride = 256;
constexpr std::int64_t kContextWithUnknownMemory = 32768;
constexpr std::int32_t kMaxChunkTokens = 65536;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::int64_t state_bytes(const CacheLayout& layout, std::int64_t max_context) {
  return layout.planned_bytes_for(1, max_context) + PageTables::planned_bytes(layout, 1, max_context);
}

// The longest context, a multiple of the block unless the model allows no more, whose state takes half of
// memory.
std::int64_t default_context(const ModelConfig& config, const CacheLayout& layout,
                             std::int64_t memory_bytes) {
  const std::int64_t most = config.max_position_embeddings;
  if (memory_bytes <= 0) return std::min(most, kContextWithUnknownMemory);
  std::int64_t fits = std::min<std::int64_t>(most, layout.options.block_tokens);
  std::int64_t too_long = most + 1;
  while (too_long - fits > layout.options.block_tokens) {
    const std::int64_t middle = fits + (too_long - fits) / 2;
    (state_bytes(layout, middle) <= memory_bytes / 2 ? fits : too_long) = middle;
  }
  return state_bytes(layout, most) <= memory_bytes / 2 ? most : fits;
}

// Tokens of the next prefill step. Steps end at multiples of the stride, where a point to go back to is kept,
// and the last multiple before the end of the prompt is always one of them: the next prompt often differs in
// its last tokens.
std::int64_t step_tokens(std::int64_t position, std::int64_t remaining, std::int64_t chunk_tokens) {
  const std::int64_t end = position + std::min(remaining, chunk_tokens);
  const std::int64_t last_multiple = end - end % kRewindStride;
  const bool cut = last_multiple > position && (remaining <= chunk_tokens || chunk_tokens >= kRewindStride);
  return (cut ? last_multiple : end) - position;
}

bool is_set(const CancelFlag* cancel) { return cancel != nullptr && cancel->load(std::memory_order_relaxed); }

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kCallback:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

double Timings::prefill_tokens_per_second() const {
  const std::int64_t computed = prompt_tokens - reused_tokens;
  return computed > 0 && prefill_seconds > 0 ? static_cast<double>(computed) / prefill_seconds : 0;
}

double Timings::decode_tokens_per_second() const {
  return generated_tokens > 1 && decode_seconds > 0
             ? static_cast<double>(generated_tokens - 1) / decode_seconds
             : 0;
}

Result<SessionMemory> plan_session_memory(const ModelConfig& config, const Knobs& knobs, int activation_bytes,
                                          std::int64_t max_context, std::int32_t chunk_tokens,
                                          std::int64_t memory_bytes) {
  PIVOT_TRY(const CacheLayout layout, make_cache_layout(config, knobs));
  if (max_context < 0 || max_context > config.max_position_embeddings)
    return fail(ErrorCode::kInvalidArgument, "the context limit is {} tokens; this model takes 1 to {}",
                max_context, config.max_position_embeddings);
  if (chunk_tokens < 0 || chunk_tokens > kMaxChunkTokens)
    return fail(ErrorCode::kInvalidArgument, "a prefill step of {} tokens is not possible; choose 1 to {}",
                chunk_tokens, kMaxChunkTokens);
  SessionMemory memory;
  memory.max_context = max_context > 0 ? max_context : default_context(config, layout, memory_bytes);
  const std::int32_t topk = resolve_index_topk(config, knobs, memory.max_context);
  memory.chunk_tokens = chunk_tokens > 0 ? chunk_tokens : default_step_tokens(config, activation_bytes, topk);
  memory.chunk_tokens =
      static_cast<std::int32_t>(std::min<std::int64_t>(memory.chunk_tokens, memory.max_context));
  memory.state_bytes = state_bytes(layout, memory.max_context);
  memory.workspace_bytes =
      Workspace::planned_bytes(config, activation_bytes, {memory.chunk_tokens, 1, 1, topk});
  return memory;
}

struct Session::State {
  // The slot's bytes at an earlier position: enough to go on from there, because finished cache entries stay
  // in their pages until they are written again.
  struct RewindPoint {
    std::int64_t position = 0;
    std::vector<std::byte> slot;
  };

  SessionMemory memory;
  std::unique_ptr<Model> model;
  std::shared_ptr<CachePool> pool;
  std::unique_ptr<PageTables> tables;
  std::unique_ptr<SequenceState> sequence;
  std::vector<LayerCacheView> views;
  std::vector<RewindPoint> points;  // ascending positions
  std::vector<float> logits;
  bool has_logits = false;
  TapSink* taps = nullptr;

  Result<> step(std::span<const TokenId> ids, bool wants_logits);
  void save_point();
  void restore(std::int64_t position, const RewindPoint& point);
  void drop_points_after(std::int64_t position) {
    while (!points.empty() && points.back().position > position) points.pop_back();
  }
};

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::create(SessionOptions options) {
  PIVOT_CHECK(options.weights != nullptr && options.backend != nullptr);
  const ModelConfig& config = options.weights->config;
  auto state = std::make_unique<State>();
  PIVOT_TRY(state->memory, plan_session_memory(config, options.knobs, options.backend->activation_bytes(),
                                               options.max_context, options.chunk_tokens,
                                               options.backend->device().memory_bytes));
  PIVOT_TRY(CacheLayout layout, make_cache_layout(config, options.knobs));
  ModelOptions model_options;
  model_options.knobs = options.knobs;
  model_options.max_context = state->memory.max_context;
  model_options.max_step_tokens = state->memory.chunk_tokens;
  PIVOT_TRY(state->model, Model::create(options.weights, options.backend, model_options));
  const CachePoolOptions pool_options = CachePoolOptions::for_sequences(layout, 1, state->memory.max_context);
  PIVOT_TRY(state->pool, CachePool::create(options.backend, std::move(layout), pool_options));
  PIVOT_TRY(state->tables,
            PageTables::create(options.backend, state->pool->layout(), 1, state->memory.max_context));
  PIVOT_TRY(state->sequence, SequenceState::create(state->pool));
  state->views = state->pool->views(state->tables->tables());
  state->logits.resize(static_cast<std::size_t>(config.vocab_size));
  return std::unique_ptr<Session>(new Session(std::move(state)));
}

const ModelConfig& Session::config() const { return state_->model->config(); }
const Knobs& Session::knobs() const { return state_->model->knobs(); }
std::int64_t Session::max_context() const { return state_->memory.max_context; }
std::int32_t Session::chunk_tokens() const { return state_->memory.chunk_tokens; }
std::int64_t Session::state_bytes() const {
  return state_->pool->allocated_bytes() + state_->tables->allocated_bytes();
}
std::int64_t Session::workspace_bytes() const { return state_->model->workspace_bytes(); }
std::span<const TokenId> Session::tokens() const { return state_->sequence->tokens(); }
std::int64_t Session::position() const { return state_->sequence->position(); }
std::span<const float> Session::logits() const {
  return state_->has_logits ? std::span<const float>(state_->logits) : std::span<const float>();
}
void Session::set_taps(TapSink* taps) { state_->taps = taps; }

Result<> Session::State::step(std::span<const TokenId> ids, bool wants_logits) {
  const auto count = static_cast<std::int32_t>(ids.size());
  PIVOT_TRY_VOID(sequence->reserve(count));
  const SequenceState* const row = sequence.get();
  tables->upload({&row, 1});
  std::vector<std::int32_t> token_ids(ids.size());
  std::transform(ids.begin(), ids.end(), token_ids.begin(), [](TokenId id) { return raw(id); });
  const SequenceSpan span{0, count, static_cast<std::int32_t>(sequence->position()), sequence->slot(), 0};
  const std::int32_t last_row = count - 1;
  const std::span<const std::int32_t> rows(&last_row, wants_logits ? 1 : 0);
  has_logits = false;
  Result<> result = model->forward({token_ids, {&span, 1}, rows, views}, taps);
  if (!result) {
    // The rings may be half written: nothing of the sequence can be relied on.
    sequence->rewind_bookkeeping(0);
    points.clear();
    return fail(std::move(result).error().with(
        fmt::format("computing tokens {} to {}", span.start_position, span.start_position + count - 1)));
  }
  sequence->append(ids);
  if (wants_logits) {
    model->read_logits(0, logits);
    has_logits = true;
  }
  if (sequence->position() % kRewindStride == 0) save_point();
  return {};
}

void Session::State::save_point() {
  const std::int64_t position = sequence->position();
  drop_points_after(position);
  if (!points.empty() && points.back().position == position) return;
  const std::int64_t slot_bytes = pool->layout().slot_bytes;
  const auto most = static_cast<std::size_t>(
      std::clamp(kRewindBudgetBytes / slot_bytes, kMinRewindPoints, kMaxRewindPoints));
  RewindPoint point;
  if (points.size() >= most) {
    point = std::move(points.front());  // the lowest goes; its memory is used again
    points.erase(points.begin());
  }
  point.position = position;
  point.slot.resize(static_cast<std::size_t>(slot_bytes));
  pool->backend().download(point.slot.data(), pool->slot_data(sequence->slot()), slot_bytes);
  points.push_back(std::move(point));
}

void Session::State::restore(std::int64_t position, const RewindPoint& point) {
  pool->backend().upload(pool->slot_data(sequence->slot()), point.slot.data(), pool->layout().slot_bytes);
  sequence->rewind_bookkeeping(position);
}

Result<> Session::prefill(std::span<const TokenId> ids, const ProgressFn& progress,
                          const CancelFlag* cancel) {
  if (ids.empty()) return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens; give at least one");
  const std::int64_t vocab_size = config().vocab_size;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (raw(ids[i]) < 0 || raw(ids[i]) >= vocab_size)
      return fail(ErrorCode::kInvalidArgument, "token id {} at index {} is outside the vocabulary of {}",
                  raw(ids[i]), i, vocab_size);
  const auto total = static_cast<std::int64_t>(ids.size());
  if (position() + total > max_context())
    return fail(ErrorCode::kContextOverflow,
                "{} tokens after the {} already held make {}, more than the context limit of {}; shorten the "
                "prompt or "
                "raise the limit",
                total, position(), position() + total, max_context());

  std::int64_t done = 0;
  while (done < total) {
    if (is_set(cancel))
      return fail(ErrorCode::kCancelled, "stopped after {} of {} prompt tokens", done, total);
    const std::int64_t count = step_tokens(position(), total - done, chunk_tokens());
    PIVOT_TRY_VOID(state_->step(ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)),
                                done + count == total));
    done += count;
    if (progress) progress(done, total);
  }
  if (total > 1) state_->save_point();
  return {};
}

Result<> Session::decode(TokenId id) { return prefill({&id, 1}); }

Result<SampledToken> Session::sample(const SamplingParams& params) const {
  if (!state_->has_logits)
    return fail(ErrorCode::kInvalidArgument, "there are no logits to sample from; prefill a prompt first");
  if (uses_history(params))
    return fail(ErrorCode::kUnsupported, "a session draws without penalties; leave them at their defaults");
  return pivot::sample(state_->logits, params, static_cast<std::uint64_t>(position()));
}

Result<std::int64_t> Session::rewind_to_prefix(std::span<const TokenId> ids) {
  if (ids.empty()) return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens; give at least one");
  const std::span<const TokenId> held = tokens();
  const auto common = static_cast<std::int64_t>(
      std::mismatch(held.begin(), held.end(), ids.begin(), ids.end()).first - held.begin());
  const std::int64_t most = std::min<std::int64_t>(common, static_cast<std::int64_t>(ids.size()) - 1);
  if (most == position()) return most;
  state_->has_logits = false;
  state_->drop_points_after(most);
  const std::int64_t point = state_->points.empty() ? 0 : state_->points.back().position;
  if (most > point && state_->sequence->can_truncate(most)) {
    PIVOT_TRY_VOID(state_->sequence->truncate(most));
    return most;
  }
  if (point == 0) {
    reset();
    return 0;
  }
  state_->restore(point, state_->points.back());
  return point;
}

void Session::reset() {
  state_->sequence->rewind_bookkeeping(0);
  state_->points.clear();
  state_->has_logits = false;
}

Result<GenerationResult> Session::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                           const TokenFn& on_token) {
  PIVOT_TRY_VOID(validate(options.sampling, config().vocab_size));
  if (options.max_new_tokens < 0)
    return fail(ErrorCode::kInvalidArgument, "max_new_tokens is {}; it must be 0 (no limit) or positive",
                options.max_new_tokens);
  GenerationResult result;
  Timings& timings = result.timings;
  timings.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  const Stopwatch prefill_watch;
  PIVOT_TRY(timings.reused_tokens, rewind_to_prefix(prompt));
  PIVOT_TRY_VOID(prefill(prompt.subspan(static_cast<std::size_t>(timings.reused_tokens)), options.on_prefill,
                         options.cancel));
  timings.prefill_seconds = prefill_watch.seconds();

  const Stopwatch decode_watch;
  while (true) {
    PIVOT_TRY(SampledToken token, sample(options.sampling));
    const TokenId id = token.id;
    const bool go_on = !on_token || on_token(token);
    result.tokens.push_back(std::move(token));
    const auto generated = static_cast<std::int64_t>(result.tokens.size());
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), id) != options.stop_tokens.end()) {
      result.reason = FinishReason::kStopToken;
    } else if (!go_on) {
      result.reason = FinishReason::kCallback;
    } else if (options.max_new_tokens > 0 && generated >= options.max_new_tokens) {
      result.reason = FinishReason::kLength;
    } else if (position() >= max_context()) {
      result.reason = FinishReason::kContextFull;
    } else if (is_set(options.cancel)) {
      result.reason = FinishReason::kCancelled;
    } else {
      PIVOT_TRY_VOID(decode(id));
      continue;
    }
    break;
  }
  timings.generated_tokens = static_cast<std::int64_t>(result.tokens.size());
  timings.decode_seconds = decode_watch.seconds();
  return result;
}

}  // namespace pivot
