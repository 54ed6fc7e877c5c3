// One step: what to compute, the forward pass, drawing and delivering tokens.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/device_draw.h"
#include "engine/loop.h"

namespace pivot {
namespace {

// States of shorter prefixes are not worth keeping.
constexpr std::int64_t kMinCachedTokens = 32;
// Draws below this number are not worth waking threads for.
constexpr std::size_t kMinParallelDraws = 4;
// A device that fails this many steps in a row is given up.
constexpr std::int32_t kMaxFailedSteps = 3;

// Whether the next token depends on nothing but the row of logits: a draw that the device can make. The first
// token of an answer is the host's, because the row is kept beside the prompt's state.
bool needs_only_its_row(const Choice& choice) {
  return choice.generated_tokens() > 0 && choice.constraint == nullptr &&
         choice.generated_tokens() >= choice.request->spec.min_new_tokens &&
         device_draw_takes(choice.sampling);
}

}  // namespace

std::span<const float> Engine::Loop::logits_row(std::int32_t row) {
  const auto vocab = static_cast<std::size_t>(config().vocab_size);
  const std::span<float> values =
      std::span(host_logits_).subspan(static_cast<std::size_t>(row) * vocab, vocab);
  model_->read_logits(row, values);
  return values;
}

void Engine::Loop::step() {
  StepRecord record;
  record.start = Clock::now();
  admit();
  draw_ready();
  std::vector<Share> shares = plan_shares(record.decode_tokens, record.prefill_tokens);
  if (shares.empty()) return;
  const Clock::time_point planned = Clock::now();
  Result<> computed = forward(shares);
  const Clock::time_point done = Clock::now();
  record.forward_seconds = seconds_between(planned, done);
  record.schedule_seconds = seconds_between(record.start, planned);
  record.sequences = static_cast<std::int32_t>(shares.size());
  EngineStats& stats = live_stats_;
  record.index = stats.steps++;
  stats.step_seconds += record.forward_seconds;
  stats.schedule_seconds += record.schedule_seconds;
  stats.batch_size_sum += shares.size();
  ++stats.batch_size_steps[std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(shares.size() - 1)),
                                                 stats.batch_size_steps.size() - 1)];
  if (computed) {
    failed_in_a_row_ = 0;
    times_.observe(record.decode_tokens, record.prefill_tokens, record.forward_seconds);
    after_forward(shares);
  } else {
    ++stats.failed_steps;
    fail_step(shares, computed.error());
  }
  record.sample_seconds = seconds_between(done, Clock::now());
  stats.sample_seconds += record.sample_seconds;
  record.waiting = static_cast<std::int32_t>(queue_.size());
  if (options_.on_step) options_.on_step(record);
}

void Engine::Loop::fail_step(const std::vector<Share>& shares, const Error& error) {
  spdlog::error("a step of {} sequences failed: {}", shares.size(), error.to_string());
  const bool lost = ++failed_in_a_row_ >= kMaxFailedSteps;
  if (lost) {
    spdlog::critical("{} steps in a row failed; the engine takes no more requests", failed_in_a_row_);
    const std::lock_guard lock(inbox_mutex_);
    accepting_ = false;
  }
  for (const Share& share : shares) fail_choice(*share.choice, error);
  if (!lost) return;
  std::vector<Request*> left;
  for (const auto& [id, request] : requests_) left.push_back(request.get());
  for (Request* request : left) {
    std::int32_t live = request->live;
    for (std::size_t i = request->choices.size(); i-- > 0 && live > 0;) {
      if (request->choices[i]->stage == Choice::Stage::kEnded) continue;
      --live;
      fail_choice(*request->choices[i], error);
    }
  }
}

std::vector<Engine::Loop::Share> Engine::Loop::plan_shares(std::int32_t& decode_tokens,
                                                           std::int32_t& prefill_tokens) {
  std::int32_t decodes = 0;
  std::vector<Choice*> prefills;
  // Every running choice has something to compute: those that had not were drawn for.
  for (Choice* choice : running_) {
    if (choice->decodes())
      ++decodes;
    else
      prefills.push_back(choice);
  }
  std::int32_t spare_rows = max_logit_rows_ - static_cast<std::int32_t>(running_.size());
  std::vector<PrefillJob> jobs;
  for (const Choice* choice : prefills) {
    PrefillJob job{choice->position(), choice->remaining(), static_cast<std::int64_t>(choice->ids.size())};
    if (!choice->stops.empty()) job.next_stop = std::min(job.next_stop, choice->stops.back());
    if (choice->request->spec.prompt_logprobs >= 0 && choice->generated_tokens() == 0) {
      // Every row needs its logits; a step has few of them to spare.
      const std::int64_t rows = 1 + spare_rows / 2;
      spare_rows -= static_cast<std::int32_t>(rows - 1);
      job.next_stop = std::min(job.next_stop, job.position + rows);
    }
    jobs.push_back(job);
  }
  PrefillLimits limits;
  const std::int32_t most = options_.step_tokens - decodes;
  limits.max_jobs = options_.max_sequences - decodes;
  limits.fixed_chunks = options_.deterministic;
  limits.chunk_tokens = chunk_tokens_;
  if (options_.deterministic)
    limits.budget_tokens = decodes > 0 ? std::min(most, chunk_tokens_) : most;
  else if (!times_.needs_probe(decodes))
    limits.budget_tokens = times_.prefill_budget(decodes, options_.max_step_stretch, most);
  const std::vector<std::int32_t> chunks = share_prefill(jobs, limits);

  // Pages, the most urgent first. Whoever finds none pre-empts from the other end of this order, so no choice
  // that has its pages loses them again in the same step.
  const std::vector<Choice*> order = running_;
  std::vector<Share> shares;
  std::size_t prefill = 0;
  for (Choice* choice : order) {
    std::int32_t tokens = 1;
    // The plan's view: pre-emption since then does not change who is a prefill.
    if (prefill < prefills.size() && prefills[prefill] == choice) tokens = chunks[prefill++];
    if (tokens == 0 || choice->stage != Choice::Stage::kRunning || !reserve(*choice, tokens)) continue;
    shares.push_back({choice, tokens, -1, 0});
    (choice->decodes() ? decode_tokens : prefill_tokens) += tokens;
  }
  return shares;
}

Result<> Engine::Loop::forward(std::vector<Share>& shares) {
  std::vector<const SequenceState*> sequences;
  std::vector<SequenceSpan> spans;
  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> rows;
  for (Share& share : shares) {
    const Choice& choice = *share.choice;
    const auto first = static_cast<std::int32_t>(token_ids.size());
    spans.push_back({first, share.tokens, static_cast<std::int32_t>(choice.position()),
                     choice.sequence->slot(), static_cast<std::int32_t>(sequences.size())});
    sequences.push_back(choice.sequence.get());
    const auto begin = choice.ids.begin() + choice.position();
    std::transform(begin, begin + share.tokens, std::back_inserter(token_ids),
                   [](TokenId id) { return raw(id); });
    const bool every_row =
        choice.request->spec.prompt_logprobs >= 0 && choice.generated_tokens() == 0 && choice.index == 0;
    if (!every_row && share.tokens < choice.remaining()) continue;
    share.first_row = static_cast<std::int32_t>(rows.size());
    share.rows = every_row ? share.tokens : 1;
    for (std::int32_t i = share.tokens - share.rows; i < share.tokens; ++i) rows.push_back(first + i);
  }
  tables_->upload(sequences);
  return model_->forward({token_ids, spans, rows, views_});
}

void Engine::Loop::after_forward(std::vector<Share>& shares) {
  std::vector<Draw> draws;
  std::vector<DeviceDraw> device_draws;
  std::vector<Choice*> device_choices;
  const bool on_device = draws_on_device(model_->backend());
  for (const Share& share : shares) {
    Choice& choice = *share.choice;
    if (choice.generated_tokens() == 0 || share.tokens > 1)
      live_stats_.computed_tokens += static_cast<std::uint64_t>(share.tokens);
    const std::int64_t position = choice.position();
    choice.sequence->append(
        std::span(choice.ids)
            .subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(share.tokens)));
    if (share.rows > 1 || (share.rows == 1 && choice.remaining() > 0)) note_prompt_logprobs(share);
    if (!choice.stops.empty() && choice.position() >= choice.stops.back()) {
      choice.stops.pop_back();
      if (choice.remaining() > 0) keep_state(choice, {});
    }
    const std::int32_t row = share.first_row + share.rows - 1;
    if (choice.remaining() == 0 && on_device && needs_only_its_row(choice)) {
      device_draws.push_back({row, &choice.sampling, choice.ids.size(), {}, false});
      device_choices.push_back(&choice);
    } else if (choice.remaining() == 0)
      draws.push_back({&choice, logits_row(row), {}, SampledToken{}});
    else if (choice.generated_tokens() == 0 && choice.index == 0)
      choice.request->sink(choice.request->id, 0, PrefillEvent{choice.position(), choice.prompt_tokens()});
  }
  if (!device_draws.empty()) {
    const Result<> drawn =
        draw_on_device(model_->backend(), model_->logits(), config().vocab_size, device_draws);
    for (std::size_t i = 0; i < device_draws.size(); ++i) {
      const DeviceDraw& d = device_draws[i];
      Draw answer{device_choices[i], {}, {}, SampledToken{}};
      if (!drawn)
        answer.token = fail(drawn.error());
      else if (d.drawn)
        answer.token->id = d.id;
      else {
        answer.logits = logits_row(d.row);
        draws.push_back(std::move(answer));
        continue;
      }
      handle_draw(answer);
    }
  }
  draw(draws);
}

void Engine::Loop::note_prompt_logprobs(const Share& share) {
  Choice& choice = *share.choice;
  const std::int64_t first = choice.position() - share.tokens;
  for (std::int32_t i = 0; i < share.rows; ++i) {
    const std::int64_t next = first + i + 1;
    if (next >= choice.prompt_tokens()) break;
    const std::span<const float> logits = logits_row(share.first_row + i);
    SampledToken token;
    token.id = choice.ids[static_cast<std::size_t>(next)];
    token.logprob = token_logprob(logits, token.id);
    token.top = top_logprobs(logits, choice.request->spec.prompt_logprobs);
    choice.request->prompt_logprobs.push_back(std::move(token));
  }
}

void Engine::Loop::keep_state(Choice& choice, std::span<const float> logits) {
  const EngineRequest& spec = choice.request->spec;
  if (index_ == nullptr || !spec.use_prefix_cache || choice.position() < kMinCachedTokens) return;
  const std::span<const TokenId> ids = choice.sequence->tokens();
  // What is there already is as good, unless it lacks the logits.
  const std::shared_ptr<const StateImage> there = index_->peek(ids);
  if (there != nullptr && (logits.empty() || !there->logits().empty())) return;
  if (index_->insert(ids, StateImage::capture(*choice.sequence, logits)))
    choice.cached_positions.push_back(choice.position());
}

void Engine::Loop::draw(std::vector<Draw>& draws) {
  if (draws.empty()) return;
  const std::int64_t words = mask_words(config().vocab_size);
  masks_.resize(draws.size() * static_cast<std::size_t>(words));
  for (std::size_t i = 0; i < draws.size(); ++i) {
    Draw& d = draws[i];
    if (d.choice->constraint == nullptr) continue;
    const std::span<std::uint32_t> mask =
        std::span(masks_).subspan(i * static_cast<std::size_t>(words), static_cast<std::size_t>(words));
    Result<bool> restricts = d.choice->constraint->fill_mask(mask);
    if (!restricts)
      d.token = fail(std::move(restricts).error());
    else if (*restricts)
      d.mask = mask;
  }
  const auto one = [](Draw& d) {
    if (!d.token) return;
    const Choice& choice = *d.choice;
    SampleContext context;
    context.counter = choice.ids.size();
    context.history = choice.history.get();
    context.allowed = d.mask;
    if (choice.generated_tokens() < choice.request->spec.min_new_tokens)
      context.forbidden = choice.request->spec.stop_tokens;
    d.token = sample(d.logits, choice.sampling, context);
  };
  if (draws.size() < kMinParallelDraws)
    std::for_each(draws.begin(), draws.end(), one);
  else
    samplers_->for_ranges(static_cast<std::int64_t>(draws.size()), 1,
                          [&](std::int64_t begin, std::int64_t end) {
                            std::for_each(draws.begin() + begin, draws.begin() + end, one);
                          });
  for (Draw& d : draws) handle_draw(d);
}

void Engine::Loop::draw_ready() {
  if (ready_.empty()) return;
  const auto ready = std::move(ready_);  // keeps the logits alive
  ready_.clear();
  std::vector<Draw> draws;
  for (const auto& [choice, image] : ready) draws.push_back({choice, image->logits(), {}, SampledToken{}});
  draw(draws);
}

void Engine::Loop::handle_draw(Draw& d) {
  Choice& choice = *d.choice;
  Request& request = *choice.request;
  if (!d.token) {
    fail_choice(choice, std::move(d.token).error());
    return;
  }
  if (choice.generated_tokens() == 0 && choice.position() == choice.prompt_tokens()) {
    // The prompt's end: where a repeated prompt, the next turn and the other choices go on from. A restored
    // end is in the index already.
    const bool others_wait = std::any_of(request.choices.begin(), request.choices.end(),
                                         [](const auto& c) { return c->stage == Choice::Stage::kHeld; });
    if (others_wait) request.fork = StateImage::capture(*choice.sequence, d.logits);
    keep_state(choice, d.logits);
    if (others_wait) wake_held_choices(request);
    if (choice.index == 0 && request.spec.prompt_logprobs >= 0)
      request.sink(request.id, 0, PromptLogprobsEvent{std::move(request.prompt_logprobs)});
  }
  take_token(choice, *std::move(d.token));
}

void Engine::Loop::take_token(Choice& choice, SampledToken token) {
  Request& request = *choice.request;
  const TokenId id = token.id;
  if (choice.constraint != nullptr) {
    if (Result<> accepted = choice.constraint->accept(id); !accepted) {
      fail_choice(choice, std::move(accepted).error());
      return;
    }
  }
  if (choice.history != nullptr) choice.history->add(id);
  const std::int64_t index = choice.generated_tokens();
  choice.last_token = Clock::now();
  if (index == 0) choice.first_token = choice.last_token;
  choice.ids.push_back(id);
  ++live_stats_.generated_tokens;
  request.sink(request.id, choice.index, TokenEvent{std::move(token), index});
  const std::vector<TokenId>& stops = request.spec.stop_tokens;
  if (std::find(stops.begin(), stops.end(), id) != stops.end())
    finish_choice(choice, FinishReason::kStopToken, id);
  else if (choice.constraint != nullptr && choice.constraint->is_finished())
    finish_choice(choice, FinishReason::kStopToken);
  else if (request.spec.max_new_tokens > 0 && index + 1 >= request.spec.max_new_tokens)
    finish_choice(choice, FinishReason::kLength);
  else if (choice.position() >= options_.max_context)
    finish_choice(choice, FinishReason::kContextFull);
}

}  // namespace pivot
