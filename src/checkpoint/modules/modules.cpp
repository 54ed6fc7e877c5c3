// Names: from a stored tensor's name to its place, and from the transformers scheme to the native one.
#include "checkpoint/modules/modules.h"

#include <charconv>

namespace pivot {

namespace {

// Takes "PREFIX<number>." off the front of `rest`.
std::optional<std::int32_t> take_index(std::string_view& rest, std::string_view prefix) {
  if (!rest.starts_with(prefix)) return std::nullopt;
  const char* const begin = rest.data() + prefix.size();
  const char* const end = rest.data() + rest.size();
  std::int32_t value = 0;
  const auto [at, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || at == end || *at != '.' || value < 0) return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(at - rest.data()) + 1);
  return value;
}

bool take(std::string_view& rest, std::string_view prefix) {
  if (!rest.starts_with(prefix)) return false;
  rest.remove_prefix(prefix.size());
  return true;
}

// The part of a block's tensor name after "layers.L." or "mtp.M.".
bool place_in_block(std::string_view rest, TensorPlace& place) {
  if (rest.starts_with("attn_norm.") || rest.starts_with("ffn_norm.")) {
    place.module = Module::kNorm;
  } else if (rest.starts_with("hc_attn_") || rest.starts_with("hc_ffn_")) {
    place.module = Module::kHyperConnection;
  } else if (take(rest, "attn.")) {
    if (take(rest, "compressor.")) {
      place.module = Module::kCompressor;
    } else if (take(rest, "indexer.")) {
      place.module = Module::kIndexer;
    } else {
      place.module = Module::kAttention;
    }
  } else if (take(rest, "ffn.")) {
    if (rest == "gate.tid2eid") {
      place.module = Module::kHashTable;
    } else if (rest.starts_with("gate.")) {
      place.module = Module::kRouter;
    } else if (take(rest, "shared_experts.")) {
      place.module = Module::kSharedExpert;
    } else if (const auto expert = take_index(rest, "experts.")) {
      place.module = Module::kRoutedExpert;
      place.expert = *expert;
    } else {
      return false;
    }
  } else {
    return false;
  }
  place.part = rest;
  return true;
}

}  // namespace

std::string_view module_name(Module module) {
  switch (module) {
    case Module::kEmbedding:
      return "embedding";
    case Module::kHead:
      return "LM head";
    case Module::kNorm:
      return "norms";
    case Module::kHyperConnection:
      return "hyper-connections";
    case Module::kAttention:
      return "attention";
    case Module::kCompressor:
      return "compressor";
    case Module::kIndexer:
      return "indexer";
    case Module::kRouter:
      return "router";
    case Module::kHashTable:
      return "hash table";
    case Module::kSharedExpert:
      return "shared expert";
    case Module::kRoutedExpert:
      return "routed experts";
    case Module::kDraftHead:
      return "draft head";
  }
  return "";
}

std::optional<TensorPlace> place_of(std::string_view name) {
  TensorPlace place;
  std::string_view rest = name;
  place.part = name;
  if (const auto layer = take_index(rest, "layers.")) {
    place.block = *layer;
    return place_in_block(rest, place) ? std::optional(place) : std::nullopt;
  }
  if (const auto stage = take_index(rest, "mtp.")) {
    place.block = *stage;
    place.draft = true;
    if (place_in_block(rest, place)) return place;
    place.part = rest;
    place.module = rest.starts_with("hc_head_") ? Module::kHyperConnection : Module::kDraftHead;
    return place;
  }
  if (name == "embed.weight") {
    place.module = Module::kEmbedding;
  } else if (name == "head.weight") {
    place.module = Module::kHead;
  } else if (name == "norm.weight") {
    place.module = Module::kNorm;
  } else if (name.starts_with("hc_head_")) {
    place.module = Module::kHyperConnection;
  } else {
    return std::nullopt;
  }
  return place;
}

std::optional<std::string> native_name_of(std::string_view theirs) {
  std::string_view stem = theirs;
  std::string_view suffix;
  for (const std::string_view scale :
       {std::string_view("_scale_inv"), std::string_view("_scale_2"), std::string_view("_scale")}) {
    if (stem.ends_with(".weight" + std::string(scale))) {
      stem.remove_suffix(scale.size());
      suffix = scale;
      break;
    }
  }
  std::string_view below = stem;
  std::string prefix;
  if (take(below, "model.")) {
    if (const auto layer = take_index(below, "layers.")) prefix = "layers." + std::to_string(*layer) + ".";
  }
  for (const SchemaRow& row : schema_rows()) {
    if (row.transformers.empty() || row.native.find('%') != std::string_view::npos) continue;
    const bool global = row.applies == Applies::kModel;
    if (global ? row.transformers != stem : (prefix.empty() || row.transformers != below)) continue;
    std::string native = global ? std::string(row.native) : prefix + std::string(row.native);
    if (suffix == "_scale_inv") {
      native.replace(native.size() - std::string_view("weight").size(), std::string::npos, "scale");
    } else {
      native += suffix;
    }
    return native;
  }
  return std::nullopt;
}

bool sharded_by_tensor_parallelism(const TensorPlace& place) {
  switch (place.module) {
    case Module::kHead:
    case Module::kSharedExpert:
    case Module::kRoutedExpert:
      return true;
    // Split by head (wq_b, attn_sink), by output group (wo_a) and by input (wo_b). wq_a and wkv feed every
    // head.
    case Module::kAttention:
      return place.part.starts_with("wq_b.") || place.part.starts_with("wo_a.") ||
             place.part.starts_with("wo_b.") || place.part == "attn_sink";
    default:
      return false;
  }
}

}  // namespace pivot
