// The engine thread: everything behind Engine. Internal; CONTRACT.md says which member belongs to which
// thread.
//
// loop.cpp: making, the inbox, the thread. loop_admission.cpp: starting, pre-empting, resuming, ending.
// loop_step.cpp: one step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/threads.h"
#include "cache/cache_pool.h"
#include "cache/prefix_index.h"
#include "cache/prefix_store.h"
#include "engine/choice.h"
#include "engine/engine.h"
#include "engine/step_plan.h"
#include "engine/wait_queue.h"
#include "model/forward.h"

namespace pivot {

class Engine::Loop {
 public:
  // `has_thread`: false where the caller turns the loop by hand, as tests do.
  static Result<std::unique_ptr<Loop>> create(EngineOptions options, bool has_thread = true);
  ~Loop();

  // Any thread.
  Result<RequestId> submit(EngineRequest request, EventSink sink);
  void cancel(RequestId id);
  void finish(RequestId id, std::int32_t choice);
  void clear_prefix_cache();
  bool drain(std::chrono::milliseconds timeout);
  bool accepting() const;
  void stop();
  EngineStats stats() const;
  std::uint64_t heartbeat() const { return heartbeat_.load(std::memory_order_relaxed); }
  const EngineOptions& options() const { return options_; }
  const EngineCapacity& capacity() const { return capacity_; }
  const ModelConfig& config() const { return model_->config(); }

 private:
  friend class EngineProbe;  // tests/engine: turns a loop without a thread, and counts what it holds
  struct Command {
    enum class Kind : std::uint8_t { kSubmit, kCancel, kFinish, kClearCache };
    Kind kind = Kind::kSubmit;
    RequestId id{};
    std::int32_t choice = 0;
    std::unique_ptr<Request> request;  // kSubmit
  };
  // A token to draw: where its logits lie and what became of it.
  struct Draw {
    Choice* choice = nullptr;
    std::span<const float> logits;
    std::span<const std::uint32_t> mask;
    Result<SampledToken> token;
  };
  // A choice's share of a step.
  struct Share {
    Choice* choice = nullptr;
    std::int32_t tokens = 0;
    std::int32_t first_row = -1;  // of its logits; -1: none
    std::int32_t rows = 0;
  };

  explicit Loop(EngineOptions options) : options_(std::move(options)) {}

  // loop.cpp
  Result<> check_request(const EngineRequest& request) const;
  void run();
  bool turn(bool may_wait);  // takes what has come in and runs one step; false when it is to end
  void end_all();            // cancels what is left, and waits for the disk tier
  void apply(Command command);
  void publish();
  void send(Command command);
  std::int64_t worst_tokens(const EngineRequest& spec, std::int64_t prompt_tokens) const;

  // loop_admission.cpp
  void enqueue(std::unique_ptr<Request> request);
  void admit();
  bool may_start(const Choice& choice, const PoolRoom (&room)[kNumPagePools]) const;
  void measure_room(PoolRoom (&room)[kNumPagePools]) const;
  bool start(Choice& choice);  // false: no room after all; the choice waits on
  void restore(Choice& choice, std::shared_ptr<const StateImage> image);
  void restore_longest_prefix(Choice& choice);
  bool restore_from_disk(Choice& choice, std::int64_t position);
  void store_prefixes(const Choice& choice);
  void announce_start(const Choice& choice);
  bool give_back_one();  // cached state, least useful first; false when there is none
  bool reserve(Choice& choice, std::int32_t tokens);
  void preempt(Choice& choice);
  void wake_held_choices(Request& request);
  void stop_running(Choice& choice);
  void end(Choice& choice, EngineEvent event);
  void finish_choice(Choice& choice, FinishReason reason, TokenId stop_token = TokenId{-1});
  void fail_choice(Choice& choice, Error error);
  void cancel_request(Request& request);
  void leave_queue(Request& request);
  RequestTimings timings(const Choice& choice) const;

  // loop_step.cpp
  void step();
  std::vector<Share> plan_shares(std::int32_t& decode_tokens, std::int32_t& prefill_tokens);
  Result<> forward(std::vector<Share>& shares);
  void fail_step(const std::vector<Share>& shares, const Error& error);
  void after_forward(std::vector<Share>& shares);
  void keep_state(Choice& choice, std::span<const float> logits);
  void note_prompt_logprobs(const Share& share);
  void draw(std::vector<Draw>& draws);
  void draw_ready();
  void take_token(Choice& choice, SampledToken token);
  void handle_draw(Draw& draw);
  std::span<const float> logits_row(std::int32_t row);

  // Fixed after create.
  EngineOptions options_;
  EngineCapacity capacity_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<CachePool> pool_;
  std::unique_ptr<PageTables> tables_;
  std::vector<LayerCacheView> views_;
  std::int32_t max_logit_rows_ = 0;
  std::int32_t chunk_tokens_ = 0;  // of deterministic prefill

  // The engine thread's.
  std::unordered_map<std::uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Request>> ended_;  // destroyed between steps
  WaitQueue<Choice*> queue_;
  std::vector<Choice*> running_;  // most urgent first
  // Started at the end of their prompt, with the logits that follow it: nothing is left to compute for a
  // draw.
  std::vector<std::pair<Choice*, std::shared_ptr<const StateImage>>> ready_;
  std::unordered_map<std::string, std::int32_t> running_per_client_;
  std::unique_ptr<PrefixIndex> index_;  // null: no prefix cache
  std::unique_ptr<PrefixStore> store_;  // null: no disk tier
  StepTimes times_;
  std::uint64_t starts_ = 0;
  std::int32_t failed_in_a_row_ = 0;
  std::vector<float> host_logits_;  // [rows][V]
  std::vector<std::uint32_t> masks_;
  std::unique_ptr<ThreadPool> samplers_;
  EngineStats live_stats_;

  // Shared under inbox_mutex_.
  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  std::condition_variable all_ended_;
  std::vector<Command> inbox_;
  std::int32_t queued_ = 0;  // submitted, not started
  std::unordered_map<std::string, std::int32_t> queued_per_client_;
  std::int64_t unfinished_ = 0;  // submitted, not ended
  std::uint64_t next_id_ = 1;
  std::uint64_t refused_ = 0;
  bool accepting_ = true;
  bool stopping_ = false;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;
  std::atomic<std::uint64_t> heartbeat_{0};
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace pivot
