// Observation points of the forward pass. A null sink costs nothing; with a sink, the named buffer is copied
// to the host after the op that made it, in the order of the forward pass.
//
// name           shape               type  what (specification section)
// hc_in          [T, S, d]           f32   residual entering layer 0
// attn_in        [T, d]              f32   after hc_pre and attn_norm (2.2)
// qr             [T, r]              f32   low-rank query after q_norm (2.4)
// kv             [T, D]              f32   raw rows of this step, as attention uses them (2.4)
// q              [T, H, D]           f32   queries after head norm and RoPE (2.4)
// index_q        [T, Hi, Di]         f32   after RoPE, Hadamard, rounding; ratio 4 (2.6)
// index_w        [T, Hi]             f32   head weights with both factors; ratio 4 (2.6)
// index_topk     [T, k]              i32   selected entries, ascending, the rest -1; ratio 4, when k entries
// are a choice o              [T, H, D]           f32   attention output after the inverse rotation (2.4)
// attn_out       [T, d]              f32   after wo_b
// ffn_in         [T, d]              f32   after hc_pre and ffn_norm
// gate_ids       [T, K]              i32   experts, ascending id (2.7)
// gate_w         [T, K]              f32   their weights, same order
// gate_margin    [T]                 f32   last chosen minus first dropped score; +inf in hash-routed layers
// ffn_out        [T, d]              f32   output of the experts
// hc             [T, S, d]           f32   residual after the layer
// final          [rows, d]           f32   input of the LM head, layer = num_hidden_layers
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace pivot {

struct Tap {
  std::string_view name;
  std::int32_t layer = 0;
  std::span<const std::int64_t> shape;
  std::span<const float> values;      // of f32 taps
  std::span<const std::int32_t> ids;  // of i32 taps
};

class TapSink {
 public:
  virtual ~TapSink() = default;
  // Asked before a copy is made.
  virtual bool wants(std::string_view name, std::int32_t layer) const = 0;
  // The spans are valid during the call only.
  virtual void take(const Tap& tap) = 0;
};

}  // namespace pivot
