// The chat: what is asked, what comes back, and where it is kept.
import { start as startFigures } from "/page/figures.js";
import { messageItem } from "/page/messages.js";
import { loadConversation, loadSettings, saveConversation, saveSettings } from "/page/store.js";
import { events, problem } from "/page/stream.js";

const $ = (id) => document.getElementById(id);
const log = $("log");
const prompt = $("prompt");
const settings = $("settings");

let messages = loadConversation();
let shown = [];  // {item, show} of each message
let running = null;  // AbortController of the answer that is coming
let model = null;

// ---- the conversation ----

// Ids of the calls that the reader has not answered yet: those of the last assistant message.
function openCalls() {
  const last = messages.findLastIndex((message) => message.role === "assistant");
  if (last < 0 || messages.slice(last + 1).some((message) => message.role === "user")) return new Set();
  const open = new Set((messages[last].tool_calls ?? []).map((call) => call.id));
  for (const message of messages.slice(last + 1)) open.delete(message.tool_call_id);
  return open;
}

function append(message) {
  messages.push(message);
  addItem(message);
  saveConversation(messages);
}

function addItem(message) {
  const view = messageItem(message, answerCall);
  shown.push(view);
  log.append(view.item);
  $("empty").hidden = true;
  log.scrollTop = log.scrollHeight;
}

function redraw() {
  const open = openCalls();
  for (const view of shown) view.show({ open });
}

function clear() {
  running?.abort();
  messages = [];
  shown = [];
  log.replaceChildren();
  $("empty").hidden = false;
  saveConversation(messages);
  prompt.focus();
}

// ---- asking ----

function toolList() {
  const text = settings.elements.tools.value.trim();
  $("tools-problem").textContent = "";
  if (text === "") return undefined;
  const list = JSON.parse(text);
  if (!Array.isArray(list)) throw new Error("a list is wanted");
  return list.map((tool) => (tool.type === "function" ? tool : { type: "function", function: tool }));
}

function requestBody() {
  const fields = settings.elements;
  const body = {
    model,
    stream: true,
    stream_options: { include_usage: true },
    messages: [],
    chat_template_kwargs: { thinking: fields.thinking.checked },
  };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"]) {
    if (fields[name].value !== "") body[name] = Number(fields[name].value);
  }
  const system = fields.system.value.trim();
  if (system !== "") body.messages.push({ role: "system", content: system });
  for (const { role, content, reasoning, tool_calls, tool_call_id } of messages) {
    const message = { role, content };
    if (reasoning) message.reasoning_content = reasoning;
    if (tool_calls?.length) message.tool_calls = tool_calls;
    if (tool_call_id) message.tool_call_id = tool_call_id;
    body.messages.push(message);
  }
  const tools = toolList();
  if (tools) body.tools = tools;
  return body;
}

function headers() {
  const key = settings.elements.key.value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

function merge(message, delta) {
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = (message.tool_calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= piece.id ?? "";
    call.function.name += piece.function?.name ?? "";
    call.function.arguments += piece.function?.arguments ?? "";
  }
}

function note(usage, finish, seconds) {
  const parts = [];
  if (finish === "length") parts.push("cut at the most tokens");
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens`, `${(usage.completion_tokens / seconds).toFixed(1)} per second`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens from the cache`);
  }
  return parts.length ? parts.join(", ") + "." : "";
}

async function ask() {
  let body;
  try {
    body = requestBody();
  } catch (error) {
    $("tools-problem").textContent = `Tools: ${error.message}`;
    openPanel("settings", true);
    return;
  }
  const message = { role: "assistant", content: "", reasoning: "", tool_calls: [] };
  append(message);
  const view = shown.at(-1);
  redraw();
  running = new AbortController();
  busy(true);
  const began = performance.now();
  let usage = null;
  let finish = null;
  let frame = 0;
  // Once per frame is as often as anybody can read.
  const draw = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (!running) return;
      const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      view.show({ streaming: true });
      if (follow) log.scrollTop = log.scrollHeight;
    });
  };
  view.show({ streaming: true });
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw new Error(await problem(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      merge(message, choice.delta ?? {});
      draw();
    }
    message.note = note(usage, finish, (performance.now() - began) / 1000);
    announce("The answer is complete.");
  } catch (error) {
    if (error.name === "AbortError") {
      message.note = "Stopped.";
      announce("Stopped.");
    } else {
      message.problem = error.message;
    }
  }
  cancelAnimationFrame(frame);
  running = null;
  // An unfinished call is nothing that could be answered or sent again.
  if (finish !== "tool_calls") message.tool_calls = [];
  busy(false);
  redraw();
  if (messages.includes(message)) saveConversation(messages);
  log.scrollTop = log.scrollHeight;
}

function answerCall(call, text) {
  append({ role: "tool", tool_call_id: call.id, content: text });
  redraw();
  if (openCalls().size === 0) ask();
}

function send() {
  const text = prompt.value.trim();
  if (text === "" || running) return;
  prompt.value = "";
  append({ role: "user", content: text });
  ask();
}

// ---- the page ----

function announce(text) {
  $("status").textContent = text;
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
}

function openPanel(name, open) {
  const panel = $(name);
  panel.hidden = !open;
  $(`show-${name}`).setAttribute("aria-expanded", String(open));
  if (open && name === "settings") panel.querySelector("textarea").focus();
}

function toggle(name) {
  openPanel(name, $(name).hidden);
}

async function findModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await problem(response));
    const card = (await response.json()).data[0];
    model = card.id;
    $("model").textContent = `${card.id}, ${card.max_model_len?.toLocaleString("en") ?? "?"} tokens of context`;
  } catch (error) {
    $("model").textContent = error.message;
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("new-chat").addEventListener("click", clear);
for (const name of ["settings", "figures"]) $(`show-${name}`).addEventListener("click", () => toggle(name));
settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("change", (event) => {
  saveSettings(settings);
  if (event.target.name === "key") findModel();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (running) running.abort();
    else prompt.focus();
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const action = { n: clear, s: () => toggle("settings"), f: () => toggle("figures") }[event.key.toLowerCase()];
  if (action) {
    event.preventDefault();
    action();
  }
});

loadSettings(settings);
for (const message of messages) addItem(message);
redraw();
if (matchMedia("(max-width: 60rem)").matches) openPanel("figures", false);
findModel();
startFigures($("figures"));
