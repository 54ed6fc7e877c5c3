// The operator vocabulary: one params struct per op and the Backend interface that a device implements.
//
// Read beside docs/specification section 2. An op is a stage of the forward pass that a GPU can run as one or
// two kernels; the CPU oracle (ops/cpu/reference) runs each as the literal sequence of the specification's
// steps.
//
// Notation: T tokens in the step, d hidden_size, S hc_mult, H heads, D head_dim, R rope dims, r q_lora_rank,
// Hi/Di index heads / head dim, E routed experts, K experts per token, V vocabulary.
// Activation buffers are `Act*`: fp32 holding BF16-representable values on the CPU back-ends (or unrounded
// fp32 with knob activations=f32), BF16 on CUDA. Buffers marked f32 are fp32 everywhere. All are contiguous,
// row-major. Every pointer lives in the back-end's memory unless it says host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "numeric/row_layout.h"
#include "ops/knobs.h"
#include "ops/views.h"

namespace pivot {

using Act = void;  // element type is Backend::activation_bytes() wide: 4 (fp32) or 2 (BF16)

// ---- op parameters ----

struct EmbedParams {  // 2.1: h[t][s] = embed[token_t]
  Matrix embed;
  std::int32_t num_streams = 0;
  Act* h = nullptr;  // [T, S, d]
};

struct HcSeamParams {  // 2.2: finish the previous sublayer (hc_post), start the next (hc_pre, norm)
  const HyperConnectionWeights* hc = nullptr;  // of the sublayer that starts
  FloatSpan norm;                              // its norm weight
  Act* h = nullptr;                            // [T, S, d], updated in place when `sublayer_out` is set
  const Act* sublayer_out = nullptr;  // [T, d] output of the sublayer that ends; null at the first seam
  float* post = nullptr;              // f32 [T, S]: read for hc_post, then overwritten for the next one
  float* comb = nullptr;              // f32 [T, S, S]: likewise
  Act* x = nullptr;                   // [T, d] = rms(hc_pre(h), norm)
};

struct HcHeadParams {  // 2.2: hc_post of the last sublayer, hc_head, final norm, for chosen rows
  const HyperHeadWeights* hc = nullptr;
  FloatSpan norm;
  Act* h = nullptr;                   // [T, S, d], updated in place (hc_post) for every token
  const Act* sublayer_out = nullptr;  // [T, d]
  const float* post = nullptr;
  const float* comb = nullptr;
  std::int32_t num_rows = 0;
  const std::int32_t* rows = nullptr;  // [num_rows] token indices that need logits
  Act* x = nullptr;                    // [num_rows, d]
};

struct LatentParams {  // 2.4 steps 1 and 5, 2.5, 2.6 steps 2-3: everything that reads the attention input x
  const AttentionWeights* weights = nullptr;
  const Act* x = nullptr;  // [T, d]
  Act* qr = nullptr;       // [T, r]
  Act* kv = nullptr;       // [T, D] raw rows after norm, RoPE and the kv knob's rounding
  // Optional [T, kv_scale_groups]: E8M0 byte of each group of 64 NoPE dims of `kv`, taken before its
  // rounding.
  std::uint8_t* kv_scales = nullptr;
  float* index_weights = nullptr;  // f32 [T, Hi], both scale factors included; ratio 4 only
  LayerCacheView cache;            // compressor states advance; finished entries are written to their pages
};

struct QueryParams {  // 2.4 steps 2-4, 2.6 step 1
  const AttentionWeights* weights = nullptr;
  const Act* qr = nullptr;  // [T, r]
  Act* q = nullptr;         // [T, H, D]
  Act* index_q = nullptr;   // [T, Hi, Di] after RoPE, Hadamard and the index knob's rounding; ratio 4 only
};

struct IndexSelectParams {               // 2.6 steps 4-5; ratio 4 only
  const Act* index_q = nullptr;          // [T, Hi, Di]
  const float* index_weights = nullptr;  // f32 [T, Hi]
  PagedView index_keys;
  std::int32_t topk = 0;             // > 0
  std::int32_t* selected = nullptr;  // [T, topk] entry indices, ascending; first count[t] valid, the rest -1
  std::int32_t* count = nullptr;     // [T]
};

struct AttentionParams {  // 2.4: visible set, softmax with sink, inverse rotation; then commits kv to the
                          // ring
  const AttentionWeights* weights = nullptr;
  const Act* q = nullptr;   // [T, H, D]
  const Act* kv = nullptr;  // [T, D] this step's raw rows
  // Optional, as written by latent(): makes a packed ring byte-equal to packing the rows before their
  // rounding (specification 3.1). Without it the bytes may differ while the values they stand for do not.
  const std::uint8_t* kv_scales = nullptr;
  LayerCacheView cache;  // rows before the step come from cache.window
  const std::int32_t* selected =
      nullptr;  // ratio 4 with selection: see IndexSelectParams; null = all visible entries
  const std::int32_t* selected_count = nullptr;
  std::int32_t topk = 0;
  Act* o = nullptr;  // [T, H, D] after the inverse rotation
};

struct AttentionOutParams {  // 2.4 step 8-9
  const AttentionWeights* weights = nullptr;
  const Act* o = nullptr;  // [T, H, D]
  Act* out = nullptr;      // [T, d]
};

struct RouteParams {  // 2.7 router
  const MoeWeights* weights = nullptr;
  const Act* x = nullptr;              // [T, d]
  std::int32_t* expert_ids = nullptr;  // [T, K] ascending expert id
  float* expert_weights = nullptr;     // f32 [T, K], route scale included, same order
  float* margin = nullptr;  // optional f32 [T]: K-th minus (K+1)-th selection score; +inf when hash routed
};

struct MoeParams {  // 2.7 experts: routed in ascending expert id, then shared, one rounding
  const MoeWeights* weights = nullptr;
  const Act* x = nullptr;  // [T, d]
  const std::int32_t* expert_ids = nullptr;
  const float* expert_weights = nullptr;
  Act* out = nullptr;  // [T, d]
};

struct LogitsParams {  // Lin32
  Matrix head;
  const Act* x = nullptr;  // [num_rows, d]
  std::int32_t num_rows = 0;
  float* logits = nullptr;  // f32 [num_rows, V]
};

// ---- the interface ----

// Per-layer facts every op may need; built once per model.
struct LayerContext {
  const ModelConfig* config = nullptr;
  std::int32_t layer = 0;
  int ratio = 0;                            // 0, 4 or 128
  const float* rope_frequencies = nullptr;  // host fp32 [R/2]: w_i of this layer kind (specification 2.3)
};

struct DeviceInfo {
  std::string name;               // "cpu (AVX2, 2 threads)", "NVIDIA H200"
  std::int64_t memory_bytes = 0;  // usable for weights and state
};

// What the launches of a step depend on besides the data in device memory: steps with equal keys run the same
// kernels with the same arguments, whatever their token ids, positions, lengths and page tables hold.
struct StepKey {
  std::int32_t num_tokens = 0;
  std::int32_t num_logit_rows = 0;
  std::uint64_t cache = 0;  // hash of the cache views' addresses and strides

  bool operator==(const StepKey&) const = default;
};

// One device. Ops are asynchronous on CUDA and complete on return on the CPU; `synchronize` waits.
// REQUIRES of every op: shapes agree with the config the context names; preconditions are checked, not
// reported.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu-reference", "cpu", "cuda"
  virtual DeviceInfo device() const = 0;
  virtual int activation_bytes() const = 0;  // 4 or 2
  // Why this back-end cannot run this model with these knobs; success means every op below may be called.
  virtual Result<> supports(const ModelWeights& weights, const Knobs& knobs) const = 0;

  // Memory. Allocation failure is kOutOfMemory with the wanted and the free bytes.
  virtual Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose) = 0;
  virtual void release(std::byte* memory) = 0;
  virtual void fill(std::byte* memory, int value, std::int64_t bytes) = 0;
  virtual void upload(void* device, const void* host, std::int64_t bytes) = 0;
  virtual void download(void* host, const void* device, std::int64_t bytes) = 0;
  virtual Result<> synchronize() = 0;
  // Weights ready for this device: the CPU back-ends return their argument (or repack once), CUDA uploads.
  virtual Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) = 0;

  // Runs `record`, which calls the ops of one step. A back-end that replays steps may keep the launches it
  // makes under `key` and repeat them in place of a later call, so `record` must take no decision from what
  // `key` leaves out: the model then decides by its limits (max_context), never by live lengths (faults B12,
  // B13).
  virtual bool replays_steps() const { return false; }
  // How many steps were repeated so far in place of a call of `record`.
  virtual std::uint64_t replayed_steps() const { return 0; }
  virtual void run_step(const StepKey& key, const std::function<void()>& record) {
    (void)key;
    record();
  }

  virtual void embed(const StepBatch& batch, const EmbedParams& p) = 0;
  virtual void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                       const HcSeamParams& p) = 0;
  virtual void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
                       const HcHeadParams& p) = 0;
  virtual void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                      const LatentParams& p) = 0;
  virtual void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const QueryParams& p) = 0;
  virtual void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                            const IndexSelectParams& p) = 0;
  virtual void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                         const AttentionParams& p) = 0;
  virtual void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                             const AttentionOutParams& p) = 0;
  virtual void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const RouteParams& p) = 0;
  virtual void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                   const MoeParams& p) = 0;
  virtual void logits(const Knobs& knobs, const LogitsParams& p) = 0;
};

}  // namespace pivot
