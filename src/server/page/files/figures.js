// Live figures from /metrics: parsed, differenced, drawn.

const kInterval = 2000;  // ms between readings
const kPoints = 90;      // readings on a plot
const kSvg = "http://www.w3.org/2000/svg";

// "name{a="b"} 1" lines as {name, labels, value}.
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[key] = value;
    samples.push({ name: match[1], labels, value: Number(match[3].replace("+Inf", "Infinity")) });
  }
  return samples;
}

export const total = (samples, name) =>
  samples.reduce((sum, sample) => (sample.name === name ? sum + sample.value : sum), 0);

// Quantile of what a histogram took between two readings; null where it took nothing.
export function quantile(before, after, name, q) {
  const counts = (samples) => samples.filter((sample) => sample.name === `${name}_bucket`)
    .map((sample) => [Number(sample.labels.le.replace("+Inf", "Infinity")), sample.value])
    .sort((a, b) => a[0] - b[0]);
  const old = new Map(counts(before));
  const buckets = counts(after).map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let low = 0;
  let below = 0;
  for (const [bound, count] of buckets) {
    if (count >= q * all) {
      if (bound === Infinity) return low;
      return low + (bound - low) * ((q * all - below) / (count - below));
    }
    low = bound;
    below = count;
  }
  return low;
}

const svg = (name, attributes = {}) => {
  const node = document.createElementNS(kSvg, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};

function short(value) {
  if (Number.isInteger(value) || value >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(value >= 10 ? 1 : 2);
}
const seconds = (value) => (value === null ? "–" : value >= 1 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(1)} ms`);

// One plot of one or two lines over the last readings.
function plot(figure, describe) {
  const holder = figure.querySelector(".plot");
  const drawing = svg("svg", { viewBox: `0 0 ${kPoints - 1} 100`, preserveAspectRatio: "none", role: "img" });
  const lines = [svg("path"), svg("path", { class: "second" })];
  drawing.append(...lines);
  const scale = document.createElement("div");
  scale.className = "scale quiet";
  const span = document.createElement("span");
  const top = document.createElement("span");
  span.textContent = `${(kPoints * kInterval) / 60000} minutes`;
  scale.append(span, top);
  holder.append(drawing, scale);
  const history = [];
  return (values, texts) => {
    history.push(values);
    if (history.length > kPoints) history.shift();
    const most = Math.max(1e-9, ...history.flat().filter((value) => value !== null));
    lines.forEach((line, index) => {
      let pen = "M";
      const path = history.map((one, step) => {
        if (one[index] === null || one[index] === undefined) {
          pen = "M";
          return "";
        }
        // The h0 makes a lone reading a dot.
        const piece = `${pen}${kPoints - history.length + step} ${98 - (one[index] / most) * 94}h0`;
        pen = "L";
        return piece;
      });
      line.setAttribute("d", path.join(""));
    });
    const text = texts.join(", ");
    figure.querySelector("output").textContent = text;
    drawing.setAttribute("aria-label", `${describe}: ${text}`);
    top.textContent = most > 1e-9 ? `top ${describe.includes("seconds") ? seconds(most) : short(most)}` : "";
  };
}

// One bar per pool: used, kept by the prefix cache, free.
function bars(figure, samples) {
  const pools = new Map();
  for (const { name, labels, value } of samples) {
    if (name !== "pivot_cache_pages") continue;
    if (!pools.has(labels.pool)) pools.set(labels.pool, {});
    pools.get(labels.pool)[labels.state] = value;
  }
  const list = document.createElement("dl");
  let used = 0;
  let all = 0;
  const order = ["slots", "ratio4", "ratio128"];
  for (const [pool, states] of [...pools].sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]))) {
    const sum = (states.used ?? 0) + (states.evictable ?? 0) + (states.free ?? 0);
    if (sum === 0) continue;
    used += states.used;
    all += sum;
    const bar = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img" });
    bar.setAttribute("aria-label", `${pool}: ${states.used} used, ${states.evictable} kept, ${states.free} free`);
    let x = 0;
    for (const state of ["used", "evictable", "free"]) {
      const width = ((states[state] ?? 0) / sum) * 100;
      bar.append(svg("rect", { class: state, x, y: 0, width, height: 10 }));
      x += width;
    }
    const term = document.createElement("dt");
    const names = { slots: "slots", ratio4: "ratio 4", ratio128: "ratio 128" };
    term.textContent = names[pool] ?? pool;
    const detail = document.createElement("dd");
    detail.append(bar);
    list.append(term, detail);
  }
  figure.querySelector(".bars").replaceChildren(list);
  figure.querySelector("output").textContent = all ? `${Math.round((used / all) * 100)} % of pages used` : "";
}

export function start(panel) {
  const find = (id) => panel.querySelector(`#${id}`);
  const speed = plot(find("speed"), "Generated and computed prompt tokens per second");
  const first = plot(find("first"), "Median and 95th percentile of the time to the first token in seconds");
  const queue = plot(find("queue"), "Running sequences and waiting requests");
  let before = null;
  let when = 0;

  function show(samples, now) {
    if (before) {
      const elapsed = (now - when) / 1000;
      const rate = (name) => Math.max(0, total(samples, name) - total(before, name)) / elapsed;
      const generated = rate("pivot_generated_tokens_total");
      const prefill = rate("pivot_prefill_tokens_total");
      speed([generated, prefill], [`${short(generated)} out`, `${short(prefill)} in`]);
      const median = quantile(before, samples, "pivot_time_to_first_token_seconds", 0.5);
      const high = quantile(before, samples, "pivot_time_to_first_token_seconds", 0.95);
      first([median, high], [seconds(median)]);
    }
    const running = total(samples, "pivot_sequences_running");
    const waiting = total(samples, "pivot_requests_waiting");
    queue([running, waiting], [`${running} running`, `${waiting} waiting`]);
    bars(find("cache"), samples);
    before = samples;
    when = now;
  }

  async function read() {
    if (!panel.hidden && !document.hidden) {
      try {
        const response = await fetch("/metrics");
        if (!response.ok) throw new Error(`/metrics answers ${response.status}`);
        show(parse(await response.text()), performance.now());
        find("figures-problem").textContent = "";
      } catch (error) {
        find("figures-problem").textContent = `No figures: ${error.message}`;
      }
    }
    setTimeout(read, kInterval);
  }
  read();
}
