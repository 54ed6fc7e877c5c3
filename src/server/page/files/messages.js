// The conversation as elements. Text from the model only ever becomes text nodes.

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// Plain text with ``` fences as code.
function renderText(body, text) {
  body.replaceChildren();
  text.split(/^```[^\n]*\n?/m).forEach((part, index) => {
    if (part === "") return;
    body.append(index % 2 === 1 ? element("pre", {}, element("code", {}, part.replace(/\n$/, ""))) : part);
  });
}

// One message's list item. `show(message)` draws it again after a change; `onResult(call, text)` is called when
// the reader answers a tool call.
export function messageItem(message, onResult) {
  const item = element("li", { class: message.role });
  const names = { user: "You", assistant: "Model", tool: "Tool result" };
  item.append(element("h3", {}, names[message.role] ?? message.role));

  const thinking = element("details", { class: "thinking" }, element("summary"), element("div", { class: "body" }));
  const body = element("div", { class: "body" });
  const tools = element("div");
  const foot = element("p", { class: "foot quiet" });
  item.append(thinking, body, tools, foot);
  const cards = new Map();

  function card(call) {
    const arguments_ = element("pre");
    const node = element("section", { class: "tool", "aria-label": `Call of ${call.function.name}` },
      element("h4", {}, `Calls ${call.function.name}`), arguments_);
    tools.append(node);
    return { node, arguments_, form: null };
  }

  function answerForm(call) {
    const field = element("textarea", { rows: "2", required: "" });
    const form = element("form", {}, element("label", {}, "Result for the model", field),
      element("button", { type: "submit" }, "Send result"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onResult(call, field.value);
    });
    return form;
  }

  function show({ streaming = false, open = new Set() } = {}) {
    item.classList.toggle("streaming", streaming);
    thinking.hidden = !message.reasoning;
    thinking.firstChild.textContent = streaming && !message.content ? "Thinking…" : "Thinking";
    thinking.lastChild.textContent = message.reasoning ?? "";
    renderText(body, message.content ?? "");
    body.hidden = !message.content && !streaming;
    for (const call of message.tool_calls ?? []) {
      if (!cards.has(call)) cards.set(call, card(call));
      const shown = cards.get(call);
      shown.arguments_.textContent = call.function.arguments;
      const wanted = !streaming && open.has(call.id);
      if (wanted && !shown.form) shown.node.append(shown.form = answerForm(call));
      if (!wanted && shown.form) {
        shown.form.remove();
        shown.form = null;
      }
    }
    foot.replaceChildren();
    if (message.problem) foot.append(element("span", { class: "problem", role: "alert" }, message.problem));
    else if (!streaming && message.note) foot.append(message.note + " ");
    if (!streaming && message.role === "assistant" && message.content) {
      const copy = element("button", { type: "button" }, "Copy");
      copy.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(message.content);
          copy.textContent = "Copied";
        } catch {
          copy.textContent = "Not allowed";
        }
      });
      foot.append(copy);
    }
  }

  show();
  return { item, show };
}
