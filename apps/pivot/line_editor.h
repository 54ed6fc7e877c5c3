// Lines from the user: edited, with history, when there is a terminal; plain lines otherwise.
#pragma once

#include <memory>
#include <string>

namespace pivot::cli {

class LineEditor {
 public:
  enum class Outcome {
    kLine,         // a line, without its newline
    kEnd,          // end of input (Ctrl-D on an empty line)
    kInterrupted,  // Ctrl-C; what was typed is gone
  };

  // Editing needs standard input and output to be a terminal.
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  bool interactive() const { return editor_ != nullptr; }
  // Shows the prompt (escape codes between '\1' characters) and reads one line. REQUIRES: an InterruptScope
  // lives.
  Outcome read(const std::string& prompt, std::string& line);

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;
};

}  // namespace pivot::cli
