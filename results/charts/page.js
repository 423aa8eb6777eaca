"use strict";
// Draws what stands in #data, and narrows it down by the filters. Names come from users: they reach the page as text only.
const data = JSON.parse(document.getElementById("data").textContent);
const FILTERS = ["sweep", "workload", "format", "session", "status"];
const MAX_ROWS = 25, MAX_BARS = 25, MAX_LEGEND = 14, BAR = 24, LINE = 13, PRINTED = 680;
const isNarrow = () => innerWidth < 600;
const BESIDE_EACH_OTHER = ["au", "rate", "weak-scaling", "strong-scaling", "heat", "io", "staging", "knee", "buckets"];
const COARSE = matchMedia("(pointer: coarse)").matches;
// Plotly would offer to send a chart to its makers' servers.
const SETTINGS = { responsive: true, displaylogo: false, displayModeBar: COARSE ? false : "hover", showSendToCloud: false,
  plotlyServerURL: "", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
const chosen = {}, unfolded = {}, sections = new Map();
const values = (name) => [...new Set(data.points.flatMap((point) => point[name]))].filter((value) => value !== "").sort();
const several = Object.fromEntries(FILTERS.map((name) => [name, values(name).length > 1]));
// A session needs to be told only where a sweep has several.
const sections_of = new Set(data.points.map((point) => JSON.stringify([point.sweep, point.session])));
const tell_session = sections_of.size > values("sweep").length;

function element(tag, text, more = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  return Object.assign(made, more);
}

// Plotly reads tags and entities in its texts.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
// A text on at most so many lines, cut between words where it can be.
function folded(text, width, most) {
  const lines = [];
  for (const word of String(text).split(" ").flatMap((one) => one.match(new RegExp(`.{1,${width}}`, "gsu")) || [])) {
    const joined = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && joined.length <= width) lines[lines.length - 1] = joined;
    else lines.push(word);
  }
  if (lines.length > most) lines.splice(most - 1, Infinity, lines[most - 1].slice(0, width - 1) + "…");
  return lines.map(plain);
}

function label(number) {
  const point = data.points[number];
  const words = [several.sweep && point.sweep, point.label, tell_session && point.session];
  return words.flat().filter(Boolean).join(" · ") || point.sweep[0];
}

function isShown(number) {
  const point = data.points[number];
  return FILTERS.every((name) => !chosen[name] || point[name].includes(chosen[name]));
}

function pick(list, kept) {
  return Array.isArray(list) ? kept.map((at) => list[at]) : list;
}

// A trace whose hovers, which may quote logs, are text only.
const worded = (trace) => Array.isArray(trace.hovertext) ? { ...trace, hovertext: trace.hovertext.map(plain) } : { ...trace };

// A trace with the elements of the points that are shown; null where none is left.
function narrowed(trace) {
  if (trace.meta && trace.meta.point !== undefined) return isShown(trace.meta.point) ? worded(trace) : null;
  if (!trace.customdata) return worded(trace);
  const kept = trace.customdata.map((_, at) => at).filter((at) => isShown(trace.customdata[at]));
  if (!kept.length) return null;
  const found = { ...trace };
  for (const key of ["x", "y", "base", "customdata"]) found[key] = pick(trace[key], kept);
  if (trace.error_y) {
    const { array, arrayminus } = trace.error_y;
    found.error_y = { ...trace.error_y, array: pick(array, kept), arrayminus: pick(arrayminus, kept) };
  }
  found.hovertext = found.customdata.map((number) => plain(label(number)));
  return found;
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

function heat(chart) {
  const cells = chart.cells.filter((cell) => isShown(cell[3]));
  const x = [...new Set(cells.map((cell) => cell[0]))].sort(), y = [...new Set(cells.map((cell) => cell[1]))].sort();
  const grid = y.map((row) => x.map((column) => cells.filter((c) => c[0] === column && c[1] === row).map((c) => c[2])));
  const z = grid.map((row) => row.map((found) => (found.length ? median(found) : null)));
  const text = z.map((row) => row.map((value) => (value === null ? "" : String(Number(value.toPrecision(3))))));
  const hovertext = grid.map((row) => row.map((found) => found.length + " points, " +
    (found.length ? Math.min(...found) + " to " + Math.max(...found) : "")));
  const names = { x: x.map(plain), y: y.map(plain), z, text, hovertext, texttemplate: "%{text}" };
  return cells.length ? [{ ...chart.traces[0], ...names, xgap: 2, ygap: 2, hoverongaps: false }] : [];
}

// Bars of the first points shown, from the top down, with their labels.
function bars(traces) {
  const all = [...new Set(traces.flatMap((trace) => trace.y))].sort((a, b) => a - b), numbers = all.slice(0, MAX_BARS);
  const place = new Map(numbers.map((number, at) => [number, at]));
  const found = traces.map((trace) => {
    const kept = trace.y.map((_, at) => at).filter((at) => place.has(trace.y[at]));
    return { ...trace, x: pick(trace.x, kept), y: pick(trace.y, kept).map((number) => place.get(number)),
      customdata: pick(trace.customdata, kept), hovertext: pick(trace.hovertext, kept) };
  });
  const names = numbers.map((number) => folded(label(number), ...(isNarrow() ? [20, 4] : [44, 3])));
  const yaxis = { tickvals: [...place.values()], ticktext: names.map((lines) => lines.join("<br>")),
    range: [numbers.length - 0.4, -0.6], showgrid: false };
  const bar = BAR + LINE * (Math.max(1, ...names.map((lines) => lines.length)) - 1);
  return { traces: found, layout: { yaxis, height: 130 + bar * numbers.length }, left: all.length - numbers.length };
}

function merged(a, b) {
  const out = { ...a };
  for (const [key, value] of Object.entries(b)) {
    const deep = value && typeof value === "object" && !Array.isArray(value) && out[key];
    out[key] = deep ? merged(out[key], value) : value;
  }
  return out;
}

function themed(traces, layout) {
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line"), automargin: true };
  const narrow = isNarrow(), named = traces.filter((trace) => trace.name);
  const base = {
    colorway: data.colors, paper_bgcolor: color("--back"), plot_bgcolor: color("--back"), height: 360, autosize: true,
    font: { family: "system-ui, sans-serif", size: narrow ? 11 : 12, color: color("--text") },
    margin: { l: 48, r: 12, t: COARSE ? 12 : 30, b: 44 }, hovermode: "closest", xaxis: axis, yaxis: axis, bargap: 0.25,
    hoverlabel: { align: "left", namelength: 60 }, dragmode: COARSE ? false : "zoom",
    legend: { orientation: "h", x: 0, y: -0.18, yanchor: "top", traceorder: "normal" },
    showlegend: named.length > 1 && named.length <= MAX_LEGEND,
  };
  for (const key of Object.keys(layout)) if (/^[xy]axis\d/.test(key)) base[key] = axis;
  const all = merged(base, layout);
  // Room for the legend is beyond the height of the figure.
  if (all.showlegend) {
    const names = named.map((trace) => trace.name.split("<br>"));
    const letters = Math.max(...names.flat().map((line) => line.length)), lines = Math.max(...names.map((one) => one.length));
    const across = Math.max(1, Math.floor((narrow ? 330 : 520) / (50 + 6.5 * Math.min(letters, 60))));
    const room = (20 + LINE * (lines - 1)) * Math.ceil(named.length / across) + 10;
    all.height += room;
    all.margin = { ...all.margin, b: 60 + room };
    all.legend.y = -56 / Math.max(100, all.height - all.margin.b - all.margin.t);
  }
  if (document.documentElement.classList.contains("printed")) all.width = PRINTED;
  return all;
}

// Charts of a section that a user can choose between: those of points that are shown, and those of none.
function choices(section) {
  const numbers = (chart) => chart.traces.flatMap((trace) => (trace.meta ? [trace.meta.point] : trace.customdata || []))
    .filter((number) => number !== undefined);
  const has = (chart) => !numbers(chart).length || numbers(chart).some(isShown);
  return section.charts.filter((chart) => !chart.choice || has(chart));
}

function draw(section) {
  const shown = choices(section);
  const chart = shown.includes(section.current) ? section.current : shown[0];
  section.current = chart;
  if (section.select) {
    section.select.replaceChildren(...shown.map((one) => element("option", one.choice, { selected: one === chart })));
    section.select.hidden = shown.length < 2;
  }
  let traces = chart ? (chart.cells ? heat(chart) : chart.traces.map(narrowed).filter(Boolean)) : [];
  section.box.hidden = !traces.some((trace) => trace.customdata || trace.meta || trace.z);
  if (section.box.hidden) return;
  let layout = chart.layout || {}, note = chart.note || "";
  if (chart.cells) layout = merged(layout, { height: 190 + 50 * traces[0].y.length });
  if (chart.bars) {
    const made = bars(traces);
    traces = made.traces;
    layout = merged(layout, made.layout);
    if (made.left) note += ` The first ${MAX_BARS} points; narrow down to see the other ${made.left}.`;
  }
  const told = new Set(), crowded = !chart.bars && new Set(traces.map((trace) => trace.name)).size > MAX_LEGEND;
  traces = traces.map((trace) => {
    const name = trace.name === undefined ? undefined : folded(trace.name, isNarrow() ? 40 : 80, 3).join("<br>");
    const again = told.has(name);
    told.add(name);
    if (crowded) delete trace.error_y;
    const markers = trace.type === "scatter" && trace.name === "no result";
    return { ...trace, name, legendgroup: markers ? "no result" : undefined, showlegend: name !== undefined && !again };
  });
  const laid = themed(traces.filter((trace) => trace.showlegend), layout);
  if (crowded) note += " Too many lines for names and bars: choose fewer, or point at one.";
  section.note.textContent = note;
  section.lines.textContent = (chart.lines || []).join("\n");
  section.lines.hidden = !chart.lines;
  section.plot.setAttribute("aria-label", chart.title);
  Plotly.react(section.plot, traces, laid, SETTINGS);
}

// A chart with too many series for one legend is one for each choice of them.
const parted = (chart) => (chart.groups || [[chart.choice, chart.traces.keys()]])
  .map(([choice, places]) => ({ ...chart, choice, traces: [...places].map((place) => chart.traces[place]) }));

function makeSections() {
  for (const chart of data.charts.flatMap(parted)) {
    if (!sections.has(chart.key)) {
      const box = element("section", undefined, { id: chart.key, className: BESIDE_EACH_OTHER.includes(chart.key) ? "" : "wide" });
      const section = { charts: [], box, note: element("p", "", { className: "note" }), lines: element("pre", "", { className: chart.key === "io" ? "table" : "" }),
        plot: element("div", undefined, { className: "plot" }) };
      section.plot.setAttribute("role", "img");
      box.append(element("h2", chart.title), section.note);
      if (chart.choice) {
        section.select = element("select", undefined, { title: "which to show" });
        section.select.addEventListener("change", () => {
          section.current = choices(section)[section.select.selectedIndex];
          draw(section);
        });
        box.append(section.select);
      }
      box.append(section.plot, section.lines);
      document.getElementById("charts").append(box);
      sections.set(chart.key, section);
    }
    sections.get(chart.key).charts.push(chart);
  }
}

function fill(id, headings, rows) {
  const box = document.getElementById(id), more = box.querySelector(".more");
  box.hidden = !rows.length;
  const limit = unfolded[id] ? rows.length : MAX_ROWS;
  const head = element("tr");
  head.append(...headings.map(([text, right]) => element("th", text, { className: right ? "right" : "" })));
  box.querySelector("thead").replaceChildren(head);
  box.querySelector("tbody").replaceChildren(...rows.slice(0, limit).map((row) => {
    const line = element("tr");
    line.append(...row.map((text, at) => {
      const [, right, coloured, name] = headings[at];
      return element("td", text, { className: right ? "right" : name || (coloured && /^\w+$/.test(text) ? text : "") });
    }));
    return line;
  }));
  more.hidden = rows.length <= limit;
  more.textContent = `show all ${rows.length}`;
  more.onclick = () => { unfolded[id] = true; fill(id, headings, rows); };
}

function tables() {
  const shown = data.points.map((_, number) => number).filter(isShown);
  const extra = ["sweep", "session"].filter((name) => several[name]);
  const headings = data.headings.map(([text, right]) => [text, right, text === "verdict"]);
  fill("points", [...extra.map((name) => [name, false]), ["point", false, false, "point"], ...headings],
    shown.map((number) => [...extra.map((name) => data.points[number][name][0]), data.points[number].label, ...data.rows[number]]));
  const failures = data.failures.filter((failure) => isShown(failure.point) && (!chosen.status || failure.status === chosen.status));
  fill("failures", [["point", false], ["status", false, true], ["why", false, false, "why"], ["trials", true], ["phase", false], ["logs, in the store", false]],
    failures.map((f) => [label(f.point), f.status, f.reason, String(f.count), f.phase, f.logs]));
  const count = document.getElementById("count");
  if (count) count.textContent = `${shown.length} of ${data.points.length} points`;
}

function makeFilters() {
  const form = document.getElementById("filters");
  for (const name of FILTERS.filter((one) => several[one])) {
    const select = element("select", undefined, { name });
    select.append(element("option", "all", { value: "" }), ...values(name).map((value) => element("option", value, { value })));
    select.addEventListener("change", () => { chosen[name] = select.value; update(); });
    const box = element("label", `${name} `);
    box.append(select);
    form.append(box);
  }
  if (!form.children.length) return;
  form.hidden = false;
  const reset = element("button", "reset", { type: "reset" });
  form.addEventListener("reset", () => { for (const name of FILTERS) chosen[name] = ""; update(); });
  form.append(element("span", "", { id: "count", className: "of" }), reset);
}

function update() {
  tables();
  for (const section of sections.values()) draw(section);
}

function printed(on) {
  document.documentElement.classList.toggle("printed", on);
  for (const section of sections.values()) draw(section);
}

makeFilters();
makeSections();
tables();
const waiting = [...sections.values()];
// One chart a task, so that the page answers while it draws.
function next() {
  if (!waiting.length) { document.documentElement.dataset.ready = "yes"; return; }
  draw(waiting.shift());
  setTimeout(next);
}
next();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
