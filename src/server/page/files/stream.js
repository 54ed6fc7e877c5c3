// Server-sent events of a fetch response, as parsed JSON; ends at "[DONE]".
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      // An event ends with an empty line; what follows the last one is held until it is whole.
      const parts = held.split(/\r?\n\r?\n/);
      held = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).replace(/^ /, "")).join("\n");
        if (data === "[DONE]") return;
        if (data !== "") yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The sentence of an error answer, whatever its shape.
export async function problem(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return body.error?.message ?? body.message ?? text;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}
