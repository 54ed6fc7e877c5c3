// The published geometry of DeepSeek-V4-Flash, written out, so that plan tests need no outside data.
#pragma once

#include "checkpoint/flash_config.h"
#include "checkpoint/plan/roofline.h"

namespace pivot::test {

inline ModelConfig flash_with_draft(int stages = 1) {
  ModelConfig config = flash_config();
  config.draft_compress_ratios.assign(static_cast<std::size_t>(stages), 0);
  if (stages == 3) {
    config.dspark_block_size = 5;
    config.dspark_markov_rank = 256;
    config.dspark_target_layer_ids = {40, 41, 42};
  }
  return config;
}

inline CheckpointFormats native_formats(HeadKind head, int stages) {
  CheckpointFormats formats;
  formats.head = head;
  formats.draft_stages = stages;
  return formats;
}

inline ModelFacts flash_facts(IndexFormat index = IndexFormat::kFp8, KvFormat kv = KvFormat::kPacked) {
  ModelFacts facts;
  facts.config = flash_with_draft();
  facts.bytes = model_bytes(stored_tensors(facts.config, native_formats(HeadKind::kMtp, 1)));
  facts.cache = {kv, index};
  facts.draft_stages = 1;
  return facts;
}

}  // namespace pivot::test
