#include <array>

#include "command.h"

namespace pivot::cli {

std::span<const Command> command_table() {
  static constexpr std::array kCommands = {
      Command{"inspect", "Say what a checkpoint really is, from its headers and values", add_inspect},
      Command{"diff", "Compare two checkpoints tensor by tensor", add_diff},
      Command{"convert", "Store the routed experts in another format", add_convert},
      Command{"plan", "Say what fits given hardware, and what moving to another checkpoint means", add_plan},
      Command{"serve", "Serve a model over HTTP: OpenAI's and Anthropic's APIs", add_serve},
      Command{"generate", "Answer one prompt", add_generate},
      Command{"chat", "Talk with a model in the terminal", add_chat},
      Command{"demo", "Hide a fact in a book, ask for it, and show what the indexer selected", add_demo},
      Command{"logits", "Write the logits after a prompt and each step to a safetensors file", add_logits},
      Command{"recall", "Measure what a model finds in long texts, and which part of an engine loses it",
              add_recall},
      Command{"accept", "Check a checkpoint on this engine: audit, oracle, determinism, recall", add_accept},
      Command{"bench", "Measure speed at full model size, next to what the memory allows", add_bench},
      Command{"metrics", "Print what a server's /metrics tells", add_metrics},
      Command{"knobs", "Print the run-time choices that can change numerics", add_knobs},
  };
  return kCommands;
}

}  // namespace pivot::cli
