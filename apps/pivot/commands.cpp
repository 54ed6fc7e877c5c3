#include <array>

#include "command.h"

namespace pivot::cli {

std::span<const Command> command_table() {
  static constexpr std::array kCommands = {
      Command{"inspect", "Say what a checkpoint really is, from its headers and values", add_inspect},
      Command{"generate", "Answer one prompt", add_generate},
      Command{"chat", "Talk with a model in the terminal", add_chat},
      Command{"demo", "Hide a fact in a book, ask for it, and show what the indexer selected", add_demo},
      Command{"logits", "Write the logits after a prompt and each step to a safetensors file", add_logits},
      Command{"knobs", "Print the run-time choices that can change numerics", add_knobs},
  };
  return kCommands;
}

}  // namespace pivot::cli
