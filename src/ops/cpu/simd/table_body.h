// The function table of one instruction set. Included once per instruction set, after its pack_*.h.
#pragma once

#include "ops/cpu/simd/attention_body.h"
#include "ops/cpu/simd/kernels.h"
#include "ops/cpu/simd/linear_stream_body.h"

namespace {

constexpr pivot::simd::Kernels kTable = {
    .permute = permute,
    .quantize_e4m3 = quantize_e4m3,
    .quantize_e2m1 = quantize_e2m1,
    .quantize_digits = quantize_digits,
    .linear = linear,
    .sum_squares = sum_squares,
    .scale_row = scale_row,
    .divide_row = divide_row,
    .round_bf16 = round_bf16,
    .rotate = rotate,
    .hadamard = hadamard,
    .hc_post = hc_post,
    .hc_pre = hc_pre,
    .hc_coefficients = hc_coefficients,
    .swiglu = swiglu,
    .accumulate = accumulate,
    .softmax_pool = softmax_pool,
    .unpack_row = unpack_row,
    .row_scores = row_scores,
    .softmax = softmax,
    .weighted_rows = weighted_rows,
    .index_tile = index_tile,
    .index_query = index_query,
    .index_scores = index_scores,
    .head_sum = head_sum,
};

}  // namespace
