"use strict";
// Draws what stands in #data, and narrows it down by the filters. Names come from users: they reach the page as text only.
const data = JSON.parse(document.getElementById("data").textContent);
const FILTERS = ["sweep", ...data.axes, "session", "status"];
const MAX_ROWS = 25, MAX_BARS = 25, MAX_LEGEND = 14, BAR = 24, LINE = 13, PRINTED = 680;
const isNarrow = () => innerWidth < 600;
const BESIDE_EACH_OTHER = ["au", "rate", "weak-scaling", "strong-scaling", "heat", "io", "staging", "knee", "buckets"];
const COARSE = matchMedia("(pointer: coarse)").matches;
// Plotly would offer to send a chart to its makers' servers.
const SETTINGS = { responsive: true, displaylogo: false, displayModeBar: COARSE ? false : "hover", showSendToCloud: false,
  plotlyServerURL: "", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
const chosen = {}, unfolded = {}, sections = new Map();
const in_order = (a, b) => (isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : a - b);
const values = (name) => [...new Set(data.points.flatMap((point) => point[name]))].filter((value) => value !== "").sort(in_order);
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
  for (const key of ["error_x", "error_y"]) if (trace[key]) found[key] = lengths(trace[key], kept);
  found.hovertext = found.customdata.map((number) => plain(label(number)));
  return found;
}

// The error bars of some elements.
const lengths = (error, kept) => ({ ...error, array: pick(error.array, kept), arrayminus: pick(error.arrayminus, kept) });

// Each hover: which point, and the figure between its ends, with units.
function hovers(trace, layout) {
  if (!trace.hovertext || trace.hoverinfo || !trace.customdata) return trace;
  const lies = Boolean(trace.error_x) || trace.orientation === "h" || trace.lies;
  const [along, figure] = lies ? ["y", "x"] : ["x", "y"];
  const unit = (axis) => ((layout[`${axis}axis${axis === "y" ? (trace.yaxis || "").slice(1) : ""}`] || {}).title || {}).text || "";
  const short = (value) => String(Number(value.toPrecision(4)));
  const error = trace[`error_${figure}`];
  const hovertext = trace.hovertext.map((text, at) => {
    const value = trace[figure][at];
    if (typeof value !== "number") return text;
    const ends = error && error.array[at] + error.arrayminus[at] > 0
      ? ` [${short(value - error.arrayminus[at])} ${short(value + error.array[at])}]` : "";
    const place = lies ? "" : `<br>${plain(unit(along))} ${plain(trace[along][at])}`;
    const part = lies && trace.name ? `${trace.name}: ` : "";
    return `${text}${place}<br>${part}${short(value)}${ends} ${plain(unit(figure))}`;
  });
  return { ...trace, hovertext, hoverinfo: "text" };
}

// Dots set against an axis that varies: a colour for each group of points that are alike but for it, joined where it is a number.
function against(traces, name) {
  const groups = new Map(), others = data.axes.filter((one) => one !== name);
  const seen = (axis) => new Set(traces.flatMap((trace) => trace.y.map((number) => data.points[number][axis][0]))).size > 1;
  const told = ["sweep", ...others, "session"].filter((axis) => (data.axes.includes(axis) || several[axis]) && seen(axis));
  for (const trace of traces) trace.y.forEach((number, at) => {
    const point = data.points[number], [x] = point[name];
    if (x === "") return;
    const words = told.map((axis) => [axis, point[axis][0]]).filter(([, value]) => value !== "");
    const group = words.map(([axis, value]) => (isNaN(value) ? value : `${axis} ${value}`)).join(" ");
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push([x, trace.x[at], number, trace.error_x ? [trace.error_x.array[at], trace.error_x.arrayminus[at]] : [0, 0]]);
  });
  const all = [...new Set([...groups.values()].flat().map((one) => one[0]))].sort(in_order), joined = all.every((x) => !isNaN(x));
  const made = [...groups].map(([group, found]) => {
    found.sort((a, b) => in_order(a[0], b[0]));
    const customdata = found.map((one) => one[2]);
    return { type: "scatter", mode: joined ? "lines+markers" : "markers", name: group || undefined, x: found.map((one) => one[0]), y: found.map((one) => one[1]),
      error_y: { type: "data", symmetric: false, thickness: 1, array: found.map((one) => one[3][0]), arrayminus: found.map((one) => one[3][1]) },
      marker: { size: 9 }, customdata, hovertext: customdata.map((number) => plain(label(number))) };
  });
  const title = (text) => ({ title: { text } });
  return { traces: made, layout: (unit) => ({ xaxis: { ...title(name), type: "category", categoryorder: "array", categoryarray: all }, yaxis: { ...title(unit), rangemode: "tozero" } }) };
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

// Bars of the first points shown, from the top down, with their labels; the largest first where that is asked for.
function bars(traces, byValue) {
  const size = new Map(traces.flatMap((trace) => trace.y.map((number, at) => [number, trace.x[at]])));
  const all = [...size.keys()].sort((a, b) => (byValue ? size.get(b) - size.get(a) : a - b)), numbers = all.slice(0, MAX_BARS);
  const place = new Map(numbers.map((number, at) => [number, at]));
  const found = traces.map((trace) => {
    const kept = trace.y.map((_, at) => at).filter((at) => place.has(trace.y[at]));
    return { ...trace, x: pick(trace.x, kept), y: pick(trace.y, kept).map((number) => place.get(number)), lies: true,
      customdata: pick(trace.customdata, kept), hovertext: pick(trace.hovertext, kept),
      ...(trace.error_x ? { error_x: lengths(trace.error_x, kept) } : {}) };
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

// What stands below a chart: tables with their notes, then lines; an I/O profile is set as it was printed.
function told_below(section, chart) {
  const listed = (lines) => {
    const list = element("ul");
    list.append(...lines.map((line) => element("li", line)));
    return list;
  };
  const made = (chart.tables || []).map((one) => {
    const box = element("div"), scroll = element("div", undefined, { className: "scroll" }), table = element("table"), head = element("tr");
    const side = (at) => ({ className: one.headings[at][1] ? "right" : "" });
    head.append(...one.headings.map(([text], at) => element("th", text, { ...side(at), scope: "col" })));
    table.append(element("thead"), element("tbody"));
    table.tHead.append(head);
    table.tBodies[0].append(...one.rows.map((row) => {
      const line = element("tr");
      line.append(...row.map((text, at) => element("td", text, side(at))));
      return line;
    }));
    scroll.append(table);
    box.append(element("h3", one.title), ...(one.rows.length ? [scroll] : []), ...(one.notes && one.notes.length ? [listed(one.notes)] : []));
    return box;
  });
  const lines = chart.lines || [];
  if (chart.key === "io") made.push(element("pre", lines.join("\n"), { className: "table" }));
  else if (lines.length) made.push(listed(lines));
  section.below.replaceChildren(...made);
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
  section.link.hidden = section.box.hidden;
  if (section.box.hidden) return;
  let layout = chart.layout || {}, note = chart.note || "";
  if (chart.cells) layout = merged(layout, { height: 190 + 50 * traces[0].y.length });
  const along = section.along ? section.along.value : "";
  if (along) {
    const made = against(traces, along);
    traces = made.traces;
    layout = made.layout(chart.layout.xaxis.title.text);
    note = "Median over repeats; bars: 95 % interval from six repeats on, else the range. Points of one colour differ in nothing else.";
  } else if (chart.bars) {
    const made = bars(traces, chart.by_value);
    traces = made.traces;
    layout = merged(layout, made.layout);
    if (made.left) note += ` The first ${MAX_BARS} points; narrow down to see the other ${made.left}.`;
  }
  const told = new Set(), crowded = (!chart.bars || along) && new Set(traces.map((trace) => trace.name)).size > MAX_LEGEND;
  traces = traces.map((trace) => {
    const name = trace.name === undefined ? undefined : folded(trace.name, isNarrow() ? 40 : 80, 3).join("<br>");
    const again = told.has(name);
    told.add(name);
    if (crowded) delete trace.error_y;
    trace = hovers(trace, layout);
    const markers = trace.type === "scatter" && trace.name === "no result";
    return { ...trace, name, legendgroup: markers ? "no result" : undefined, showlegend: name !== undefined && !again };
  });
  const laid = themed(traces.filter((trace) => trace.showlegend), layout);
  if (crowded) note += " Too many lines for names and bars: choose fewer, or point at one.";
  section.note.textContent = note;
  told_below(section, chart);
  section.plot.setAttribute("aria-label", chart.title);
  Plotly.react(section.plot, traces, laid, SETTINGS);
}

// A chart with too many series for one legend is one for each choice of them.
const parted = (chart) => (chart.groups || [[chart.choice, chart.traces.keys()]])
  .map(([choice, places]) => ({ ...chart, choice, traces: [...places].map((place) => chart.traces[place]) }));

// A link to a part of the page, among those at its top.
function navigable(box, text) {
  const link = element("a", text, { href: `#${box.id}` });
  document.querySelector("nav").append(link);
  return link;
}

function makeSections() {
  for (const chart of data.charts.flatMap(parted)) {
    if (!sections.has(chart.key)) {
      const box = element("section", undefined, { id: chart.key, className: BESIDE_EACH_OTHER.includes(chart.key) ? "" : "wide" });
      const section = { charts: [], box, note: element("p", "", { className: "note" }), below: element("div", undefined, { className: "below" }),
        link: navigable(box, chart.title),
        plot: element("div", undefined, { className: "plot" }) };
      section.plot.setAttribute("role", "img");
      box.append(element("h2", chart.title), section.note);
      if (chart.choice) {
        section.select = element("select", undefined, { title: "which to show", ariaLabel: "which to show" });
        section.select.addEventListener("change", () => {
          section.current = choices(section)[section.select.selectedIndex];
          draw(section);
        });
        box.append(section.select);
      }
      if (chart.by_value && data.axes.length) {
        section.along = element("select", undefined, { title: "against what", ariaLabel: "against what" });
        section.along.append(element("option", "sorted", { value: "" }), ...data.axes.map((name) => element("option", `against ${name}`, { value: name })));
        section.along.addEventListener("change", () => draw(section));
        box.append(section.along);
      }
      box.append(section.plot, section.below);
      document.getElementById("charts").append(box);
      sections.set(chart.key, section);
    }
    sections.get(chart.key).charts.push(chart);
  }
}

const sorted = {};
// What a cell is sorted by: the number that it begins with, else its text; what is missing comes last.
const key_of = (cell) => (typeof cell === "string" ? (/^-?[\d.]/.test(cell) ? parseFloat(cell) : cell) : cell.size);
const is_missing = (key) => key === "" || key === "-" || key === null || key === "not measurable";
function ordered(id, rows) {
  const order = sorted[id];
  if (!order) return rows;
  const way = order.falls ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [one, other].map((row) => key_of(row[order.at]));
    if (is_missing(a) || is_missing(b)) return is_missing(a) - is_missing(b);
    return way * (typeof a === typeof b ? in_order(a, b) : typeof a === "number" ? -1 : 1);
  });
}

function heading(id, [text, right], at, again) {
  const cell = element("th", undefined, { className: right ? "right" : "", scope: "col" }), order = sorted[id];
  const button = element("button", text, { type: "button", title: `sort by ${text}` });
  if (order && order.at === at) cell.setAttribute("aria-sort", order.falls ? "descending" : "ascending");
  button.addEventListener("click", () => {
    sorted[id] = { at, falls: order && order.at === at ? !order.falls : Boolean(right) };
    again();
    document.querySelectorAll(`#${id} th button`)[at].focus();
  });
  cell.append(button);
  return cell;
}

function fill(id, headings, rows) {
  const box = document.getElementById(id), more = box.querySelector(".more"), again = () => fill(id, headings, rows);
  box.hidden = !rows.length;
  const limit = unfolded[id] ? rows.length : MAX_ROWS;
  const head = element("tr");
  head.append(...headings.map((one, at) => heading(id, one, at, again)));
  box.querySelector("thead").replaceChildren(head);
  box.querySelector("tbody").replaceChildren(...ordered(id, rows).slice(0, limit).map((row) => {
    const line = element("tr");
    line.append(...row.map((cell, at) => {
      const [, right, coloured, name] = headings[at];
      if (typeof cell === "string") return element("td", cell, { className: right ? "right" : name || (coloured && /^\w+$/.test(cell) ? cell : "") });
      const made = element("td", undefined, { className: name || "" });
      made.append(...cell.nodes());
      return made;
    }));
    return line;
  }));
  more.hidden = rows.length <= limit;
  more.textContent = `show all ${rows.length}`;
  more.onclick = () => { unfolded[id] = true; again(); };
}

// The parts of a step as a bar, as long as the step is beside the longest.
const step_ms = (parts) => (parts || []).reduce((sum, part) => sum + (part || 0), 0);
const longest_ms = Math.max(...data.parts.map(step_ms));
function parts_bar(parts, text) {
  const names = Object.keys(data.part_colors), box = element("span", undefined, { className: "parts", role: "img", ariaLabel: text });
  box.title = names.map((name, at) => [name, parts[at]]).filter(([, ms]) => ms).map(([name, ms]) => `${name} ${ms} ms`).join(", ");
  box.append(...names.map((name, at) => {
    const part = element("span");
    part.style.width = `${(100 * (parts[at] || 0)) / longest_ms}%`;
    part.style.background = data.part_colors[name];
    return part;
  }));
  return [box];
}

// A caveat as a badge, which opens to what helps.
function badge(caveat) {
  const [name] = caveat.split("(");
  const box = element("details", undefined, { className: "badge" });
  box.append(element("summary", caveat), element("span", (data.advice[name] || "").replace(`${name}: `, "")));
  return box;
}

function cell_of(number, at) {
  const text = data.rows[number][at], [name] = data.headings[at], parts = data.parts[number];
  if (name.startsWith("= ") && parts) return { size: step_ms(parts), nodes: () => parts_bar(parts, text) };
  if (name === "caveats" && text) return { size: text, nodes: () => text.split(" ").map(badge) };
  return text;
}

function tables() {
  const shown = data.points.map((_, number) => number).filter(isShown);
  const extra = ["sweep", "session"].filter((name) => several[name]);
  const headings = data.headings.map(([text, right]) => [text.startsWith("= ") ? "parts of the step" : text, right, text === "verdict", text === "caveats" && "caveats"]);
  fill("points", [...extra.map((name) => [name, false]), ["point", false, false, "point"], ...headings],
    shown.map((number) => [...extra.map((name) => data.points[number][name][0]), data.points[number].label, ...data.rows[number].map((_, at) => cell_of(number, at))]));
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

const part = (id, text) => { const box = document.getElementById(id); if (box) navigable(box, text); };
makeFilters();
part("summary", "The answer");
tables();
for (const [id, text] of [["points", "Points"], ["failures", "Without a result"]]) if (!document.getElementById(id).hidden) part(id, text);
makeSections();
if (document.getElementById("provenance").children.length) part("provenance", "Where this comes from");
document.querySelector("nav").hidden = false;
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
