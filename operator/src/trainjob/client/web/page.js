// The page of `trainjob ui`. Everything that a job says is set as text, never as HTML.
"use strict";

const MOST_LINES = 5000;
const SVG = "http://www.w3.org/2000/svg";
const find = (id) => document.getElementById(id);

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Shows what messages have between backticks as code. One that is alone stays.
function write(made, text) {
  const parts = text.split("`");
  made.replaceChildren(...(parts.length % 2 ? parts.map((part, index) => (index % 2 ? element("code", part) : part)) : [text]));
  return made;
}

function drawn(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// Calls `draw` only with content that differs from the last one, so that selections and focus stay.
const last = new Map();
function onChange(id, content, draw) {
  const text = JSON.stringify(content);
  if (last.get(id) === text) return;
  last.set(id, text);
  draw(content);
}

// ---- the connection: one stream for the list, the chosen job and its log

let source = null;
const chosen = () => decodeURIComponent(location.hash.slice(1));

function connect() {
  source?.close();
  const asked = new URLSearchParams();
  if (chosen()) asked.set("job", chosen());
  if (find("replica").value) asked.set("replica", find("replica").value);
  source = new EventSource(`stream?${asked}`);
  source.onopen = () => say("live");
  source.onerror = () => {
    const isRefused = source.readyState === EventSource.CLOSED;
    say(isRefused ? "ended: open the address of a new `trainjob ui`" : "connection lost; trying again", true);
  };
  source.addEventListener("jobs", (event) => showRows(JSON.parse(event.data)));
  source.addEventListener("job", (event) => showJob(JSON.parse(event.data)));
  source.addEventListener("log-start", () => find("log").replaceChildren());
  source.addEventListener("log", (event) => addLines(JSON.parse(event.data)));
}

function say(text, isLost = false) {
  write(find("connection"), text);
  find("connection").classList.toggle("lost", isLost);
}

// ---- the list

let rows = [];
const links = new Map();

function showRows(message) {
  rows = message.rows;
  write(find("problem"), message.problem);
  find("problem").hidden = !message.problem;
  listRows();
}

function listRows() {
  const words = find("filter").value.toLowerCase().split(/\s+/);
  const shown = rows.filter((row) => {
    const text = `${row.name} ${row.state} ${row.place}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  onChange("order", shown.map((row) => row.key), (keys) => {
    const focused = document.activeElement;
    find("rows").replaceChildren(...keys.map((key) => linkOf(key).parentElement));
    if (find("rows").contains(focused)) focused.focus();
  });
  for (const row of shown) fillRow(linkOf(row.key), row);
  for (const key of links.keys()) if (!rows.some((row) => row.key === key)) links.delete(key);
  const all = rows.length === 1 ? "1 job" : `${rows.length} jobs`;
  const some = shown.length < rows.length ? `${shown.length} of ${all}` : all;
  write(find("count"), rows.length ? some : "There are no jobs: start one with `trainjob run FILE`.");
  markChosen();
}

function linkOf(key) {
  if (!links.has(key)) {
    const link = element("a", "", { href: `#${encodeURIComponent(key)}` });
    link.append(element("b"), element("span", "", { class: "state" }), element("small"), element("small"));
    link.append(element("progress", "", { max: 1, "aria-label": "steps done" }));
    element("li").append(link);
    links.set(key, link);
  }
  return links.get(key);
}

function fillRow(link, row) {
  const [name, state, about, result, bar] = link.children;
  name.textContent = row.name;
  state.textContent = row.state;
  state.dataset.tone = row.tone;
  about.textContent = [row.began && age(row.began), row.place].filter(Boolean).join(", ");
  result.textContent = row.score || (row.steps && `step ${row.steps}`);
  bar.hidden = row.share === null || row.tone === "good";
  bar.value = row.share ?? 0;
  link.title = row.message;
}

function markChosen() {
  for (const [key, link] of links) {
    if (key === chosen()) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

function age(began) {
  let seconds = Math.max(0, (Date.now() - new Date(began)) / 1000);
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)}${name} ago`;
  }
  return "just now";
}

// ---- one job

function showJob(job) {
  find("nothing").hidden = job !== null;
  find("job").hidden = job === null;
  if (job === null) {
    find("nothing").textContent = "There is no such job any more.";
    return;
  }
  document.title = `${job.name}: ${job.state}`;
  find("job-title").textContent = job.name;
  find("job-state").textContent = job.state;
  find("job-state").dataset.tone = job.tone;
  find("job-place").textContent = [job.place, job.began && `since ${moment(job.began)}`].filter(Boolean).join(", ");
  write(find("job-message"), job.message);
  onChange("notes", job.notes, (notes) => find("notes").replaceChildren(...notes.map((note) => write(element("li"), note))));
  onChange("end", job.end, (lines) => {
    find("end").hidden = !lines.length;
    write(find("end"), lines.join("\n"));
  });
  onChange("facts", job.facts, (facts) => {
    find("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", name), write(element("dd"), value)]));
  });
  onChange("replicas", job.replicas, showReplicas);
  onChange("events", job.events, showEvents);
  // Not under somebody's pointer: the values that are read there would go.
  if (!find("curves").matches(":hover, :focus-within")) onChange("curves", job.curves, showCurves);
}

let curves = [];

function showCurves(received) {
  curves = received;
  find("beside").hidden = !curves.some((curve) => curve.series.some(isOther));
  const shown = find("others").checked ? curves : curves.map((curve) => ({ ...curve, series: curve.series.filter((each) => !isOther(each)) }));
  find("curves").replaceChildren(...shown.map(figure));
}

function showReplicas(replicas) {
  find("replicas").tBodies[0].replaceChildren(...replicas.map((replica) => {
    const row = element("tr", "", replica.failed ? { class: "failed" } : {});
    for (const name of ["name", "state", "steps", "detail"]) row.append(element("td", replica[name]));
    return row;
  }));
  onChange("choices", replicas.map((replica) => replica.name), (names) => {
    const select = find("replica"), before = select.value;
    const options = names.map((name) => element("option", name, { value: name }));
    select.replaceChildren(element("option", "all replicas", { value: "" }), ...options);
    if (before && !names.includes(before)) select.append(element("option", before, { value: before }));
    select.value = before;
  });
}

function showEvents(events) {
  find("events").replaceChildren(...events.map((event) => {
    const item = element("li", "", event.warning ? { class: "warning" } : {});
    item.append(element("time", moment(event.at), { datetime: event.at }), element("b", event.reason));
    item.append(" ", write(element("span"), event.message));
    return item;
  }));
  if (!events.length) find("events").append(element("li", "none so far", { class: "muted" }));
}

function moment(text) {
  const at = new Date(text), isToday = at.toDateString() === new Date().toDateString();
  return (isToday ? "" : `${at.toLocaleDateString()} `) + at.toLocaleTimeString([], { hour12: false });
}

// ---- curves

const WIDTH = 300, HEIGHT = 130, BOTTOM = 16, TOP = 6, LETTER = 5.8;

function figure(curve) {
  const made = element("figure"), caption = element("figcaption"), points = curve.series.flatMap((each) => each.points);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0 });
  made.append(caption, svg);
  const written = (value) => (curve.percent ? `${Number((100 * value).toFixed(1))} %` : short(value));
  const legend = (texts) => {
    const parts = curve.series.map((each, index) => element("span", `${each.label} ${texts[index]}`, { class: lineOf(each) }));
    caption.replaceChildren(element("b", curve.name), ...parts);
  };
  const latest = curve.series.map((each) => (each.points.length ? written(each.points.at(-1)[1]) : "no number"));
  legend(latest);
  if (!points.length) return made;
  const scale = scaleOf(points, curve.percent);
  const parts = curve.series.map((each, index) => `${each.label} ${latest[index]}`);
  const own = curve.series.filter((each) => !isOther(each)).flatMap((each) => each.points);
  const reached = Math.max(...(own.length ? own : points).map((point) => point[0]));
  svg.setAttribute("aria-label", `${curve.name} at step ${reached}: ${parts.join(", ")}`);
  drawAxes(svg, scale);
  for (const each of [...curve.series].sort((one, two) => isOther(two) - isOther(one))) drawLine(svg, scale, each);
  readOut(svg, curve, scale, (step) => legend(step === null ? latest : curve.series.map((each) => valueAt(each, step, written))));
  return made;
}

const isOther = (series) => series.other !== undefined;

function lineOf(series) {
  const kind = /(^| )validation$/.test(series.label) ? "second" : "first";
  return isOther(series) ? `${kind} other other-${series.other}` : kind;
}

function drawLine(svg, scale, series) {
  const path = series.points.map(([step, value]) => `${scale.x(step).toFixed(1)} ${scale.y(value).toFixed(1)}`);
  svg.append(drawn("path", { d: `M${path.join("L")}`, class: lineOf(series) }));
  if (isOther(series) ? series.points.length > 1 : series.points.length > 40) return;
  for (const [step, value] of series.points) {
    svg.append(drawn("circle", { cx: scale.x(step), cy: scale.y(value), r: 2, class: lineOf(series) }));
  }
}

const nearest = (steps, step) => steps.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best));

function valueAt(series, step, written) {
  if (!series.points.length) return "no number";
  const known = nearest(series.points.map((point) => point[0]), step);
  return `${written(series.points.find((point) => point[0] === known)[1])} at ${known}`;
}

// The axis, with a label for each tick: as many digits as tell two ticks apart, and as much room as the longest needs.
function scaleOf(points, isPercent) {
  const steps = points.map((point) => point[0]), values = points.map((point) => point[1]);
  const first = Math.min(...steps), final = Math.max(...steps);
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const tick = tickSize((high - low) / 3);
  low = Math.floor(low / tick) * tick;
  high = Math.ceil(high / tick) * tick;
  const ticks = Array.from({ length: Math.round((high - low) / tick) + 1 }, (_, index) => low + index * tick);
  const labels = ticks.map((value) => (isPercent ? `${fixed(100 * value, 100 * tick)} %` : labelOf(value, tick)));
  const left = 9 + LETTER * Math.max(...labels.map((label) => label.length));
  return {
    first, last: final, left, ticks, labels,
    x: (step) => left + (WIDTH - left - 6) * (final > first ? (step - first) / (final - first) : 0.5),
    y: (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low)),
  };
}

function tickSize(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
}

const fixed = (value, tick) => value.toFixed(Math.max(0, -Math.floor(Math.log10(tick) + 1e-9)));

function labelOf(value, tick) {
  if (Math.abs(value) < tick / 1e6) return "0";
  const [size, name] = unitOf(value);
  if (name || tick >= 1e-4) return fixed(value / size, tick / size) + name;
  return value.toExponential(Math.max(0, Math.floor(Math.log10(Math.abs(value) / tick) + 1e-9)));
}

function drawAxes(svg, scale) {
  scale.ticks.forEach((value, index) => {
    const y = scale.y(value);
    svg.append(drawn("line", { class: "grid", x1: scale.left, x2: WIDTH - 6, y1: y, y2: y }));
    svg.append(drawn("text", { x: scale.left - 5, y: y + 3, "text-anchor": "end" }, scale.labels[index]));
  });
  svg.append(drawn("text", { x: scale.left, y: HEIGHT - 3 }, `step ${scale.first}`));
  if (scale.first < scale.last) svg.append(drawn("text", { x: WIDTH - 6, y: HEIGHT - 3, "text-anchor": "end" }, `${scale.last}`));
}

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const unitOf = (value) => UNITS.find(([size]) => Math.abs(value) >= Math.max(size, 1e4)) ?? [1, ""];

function short(value) {
  const [size, name] = unitOf(value);
  return `${Number((value / size).toPrecision(3))}${name}`;
}

// Tells `show` the step under the pointer, or that which the arrow keys have reached; null: neither.
function readOut(svg, curve, scale, show) {
  const line = drawn("line", { class: "grid", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.prepend(line);
  const steps = [...new Set(curve.series.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
  let at = steps.length - 1;
  const point = (step) => {
    at = steps.indexOf(step);
    for (const end of ["x1", "x2"]) line.setAttribute(end, scale.x(step));
    line.setAttribute("visibility", "visible");
    show(step);
  };
  const leave = () => {
    line.setAttribute("visibility", "hidden");
    show(null);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * WIDTH;
    point(nearest(steps, scale.first + ((x - scale.left) / (WIDTH - scale.left - 6)) * (scale.last - scale.first)));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    point(steps[Math.min(steps.length - 1, Math.max(0, at + move))]);
  });
}

// ---- the log

function addLines(lines) {
  const log = find("log");
  log.append(...lines.map(([replica, text, isHarmless]) => {
    const line = element("div", "", isHarmless ? { class: "harmless" } : {});
    line.append(element("b", replica), text);
    return line;
  }));
  while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
  if (find("follow").checked) log.scrollTop = log.scrollHeight;
}

// ---- what people do

function choose() {
  last.delete("choices");
  find("replica").value = "";
  find("log").replaceChildren();
  find("job").hidden = true;
  find("nothing").hidden = !!chosen();
  document.title = "TrainJob";
  connect();
  markChosen();
}

function moveInList(by) {
  const all = [...find("rows").querySelectorAll("a")];
  const from = all.indexOf(document.activeElement);
  const start = from >= 0 ? from : all.findIndex((link) => link.hasAttribute("aria-current"));
  all[Math.min(all.length - 1, Math.max(0, start + by))]?.focus();
}

window.addEventListener("hashchange", choose);
find("skip").addEventListener("click", () => find("job-title").focus());
find("filter").addEventListener("input", listRows);
find("replica").addEventListener("change", connect);
find("others").addEventListener("change", () => showCurves(curves));
find("every").addEventListener("change", (event) => find("log").classList.toggle("brief", !event.target.checked));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isInList = find("rows").contains(event.target);
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const moves = { j: 1, k: -1, ...(isInList ? { ArrowDown: 1, ArrowUp: -1 } : {}) };
  if (event.key in moves) moveInList(moves[event.key]);
  else if (event.key === "/") find("filter").focus();
  else return;
  event.preventDefault();
});
setInterval(listRows, 10000);
choose();
