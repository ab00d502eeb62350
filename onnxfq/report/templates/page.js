"use strict";
const results = JSON.parse(document.getElementById("data").textContent);
for (const one of results) for (const part of ["tables", "layers", "tensors", "graph", "floats"]) one[part] ??= [];
const several = results.length > 1, page = document.getElementById("page"), LOW = 20, WIDE = 16, MANY = 2000, PORTION = 300, INKS = ["--a", "--b", "--c", "--d"];
const ink = (at) => `var(${INKS[at % INKS.length]})`, letter = (at) => String.fromCharCode(65 + (at % 26));

// Text is set as text, never as markup: names in a model may look like HTML.
function make(tag, attributes, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const one of children.flat()) if (one !== null && one !== undefined) node.append(typeof one === "string" && !tag.includes(":") ? unbroken(one) : one);
  return node;
}
// A browser breaks lines behind hyphens, also inside an arrow and in front of an option's name, and long names anywhere.
function unbroken(text) {
  if (text.length > 12 && !text.includes(" ")) return make("span", {}, text.split(/(?<=[/._:])/).flatMap((part, place) => (place ? [make("wbr"), nodeOf(part)] : [nodeOf(part)])));
  const parts = text.split(/(?<=^| )(->|--[a-z-]+)(?![\w-])/);
  return parts.length > 1 ? make("span", {}, parts.map((part, place) => (place % 2 ? whole(part) : part))) : text;
}
const nodeOf = (text) => document.createTextNode(text);
function whole(text) {
  const node = make("span", { class: "whole" });
  node.textContent = text;
  return node;
}
// A call takes as many arguments as fit on its stack, and a list may be longer: lists are children as they are.
const largest = (values, least) => values.reduce((most, one) => (one > most ? one : most), least);
const smallest = (values, most) => values.reduce((least, one) => (one < least ? one : least), most);
// Infinities are strings in the data.
const number = (value) => (value === null || value === undefined ? null : Number(value));
const db = (value) => (number(value) === null ? "" : Number.isFinite(number(value)) ? number(value).toFixed(1) : number(value) > 0 ? "∞" : "−∞");
const short = (value) => String(Number(Number(value).toPrecision(4)));
const ends = (range) => (range ? `${short(range[0])} … ${short(range[1])}` : "");
const percent = (value) => (number(value) === null ? "" : `${(100 * value).toFixed(1)}%`);
const mark = (at) => {
  if (!several) return null;
  const node = make("span", { class: "tag" }, letter(at));
  node.style.background = ink(at); // the page's policy refuses style attributes
  return node;
};

const maps = results.map((one) => ({
  layers: new Map(one.layers.map((row) => [row.node, row])), tensors: new Map(one.tensors.map((row) => [row.tensor, row])),
}));
function tensorsOf(row, at) { return row.tensors.map((name) => maps[at].tensors.get(name)).filter(Boolean); }
function lowest(row, at, field) {
  const known = tensorsOf(row, at).map((one) => number(one[field])).filter((one) => one !== null);
  return known.length ? smallest(known, Infinity) : null;
}
const ratio = (sizes) => (sizes.median ? sizes.largest[0][1] / sizes.median : sizes.largest[0][1] ? Infinity : 0);
const times = (value) => (Number.isFinite(value) ? `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} ×` : "∞");
function widest(row, at) {
  const known = tensorsOf(row, at).filter((one) => one.sizes).sort((a, b) => ratio(b.sizes) - ratio(a.sizes))[0];
  return known ? { ratio: ratio(known.sizes), text: `${known.sizes.largest[0][0]}: ${times(ratio(known.sizes))}` } : { ratio: null, text: "" };
}
function activation(row, at) { const all = tensorsOf(row, at); return all.find((one) => one.role === "activation") || all[0]; }
const formats = (row, at) => (row.quantized ? [...new Set(tensorsOf(row, at).map((one) => one.format.split(" ")[0]))].join(", ") || "quantized" : "float");

const shared = [
  { title: "#", value: (row) => row.position, text: (row) => String(row.position + 1), kind: "n", rank: 3, hint: "number of the layer, in the order of the graph where that is known" },
  { title: "operator", value: (row) => row.op_type, rank: 3 },
  { title: "layer", value: (row) => row.module || row.node, kind: "t", rank: 0 },
];
const measured = [
  { title: "alone dB", value: (row) => number(row.alone_db), text: (row) => db(row.alone_db), kind: "n", rank: 1, low: LOW, both: true, hint: "SQNR of the outputs with only this group of layers quantized: its sensitivity" },
  { title: "noise", value: (row) => number(row.noise_share), text: (row) => percent(row.noise_share), kind: "n", rank: 2, both: true, hint: "its share of the noise that all groups of layers make, each alone" },
  { title: "running dB", value: (row) => number(row.output_db), text: (row) => db(row.output_db), kind: "n", rank: several ? 2 : 1, low: LOW, both: true, hint: "SQNR of the layer's output in the running model: all noise so far" },
  { title: "largest channel", value: (row, at) => widest(row, at).ratio, text: (row, at) => widest(row, at).text, kind: "n", rank: 2, high: WIDE, hint: "number of the largest channel of what the layer reads, and its size over the median one's" },
  { title: "own dB", value: (row, at) => lowest(row, at, "sqnr_db"), text: (row, at) => db(lowest(row, at, "sqnr_db")), kind: "n", rank: 4, hint: "SQNR of the quantized inputs by themselves, the lowest" },
  { title: "middle dB", value: (row, at) => lowest(row, at, "middle_db"), text: (row, at) => db(lowest(row, at, "middle_db")), kind: "n", rank: 4, low: LOW, hint: "the same for the values of middle size; low: typical values are lost" },
  { title: "cost", value: (row) => number(row.multiplies), text: (row) => percent(row.multiplies), kind: "n", rank: 5, hint: "share of the multiply-adds" },
  { title: "engine", value: (row) => row.ran || "", rank: 3, both: true, hint: "precision in the engine" },
  { title: "engine ms", value: (row) => number(row.engine_ms), text: (row) => { const ms = number(row.engine_ms); return ms === null ? "" : ms.toFixed(4); }, kind: "n", rank: 3, both: true, hint: "time in the engine, of a layer of several nodes in equal parts" },
  { title: "format", value: formats, rank: 5, both: true },
  { title: "range", value: (row, at) => ((activation(row, at) || {}).observed || [null])[0], text: (row, at) => ends((activation(row, at) || {}).observed), kind: "n", rank: 6 },
  { title: "grid", value: (row, at) => ((activation(row, at) || {}).grid || [null])[0], text: (row, at) => ends((activation(row, at) || {}).grid), kind: "n", rank: 6 },
  { title: "calibrator", value: (row, at) => (activation(row, at) || {}).calibrator || "", rank: 7, hint: "behind best_error: the method that it took" },
];

function verdict() {
  const all = make("section", { class: several ? "side" : "", id: "verdict" });
  results.forEach((one, at) => {
    const part = make("div", {}, several ? make("h2", {}, mark(at), one.label) : null, make("p", { class: "soft" }, one.subtitle));
    part.append(make("div", { class: "tiles" }, ...one.tiles.map((tile) => make("div", {}, make("b", { class: tile.low ? "low" : "" }, tile.value), make("span", {}, tile.label)))));
    for (const [head, lines] of one.notes) {
      part.append(make("p", {}, make("b", {}, `${head}: `), lines[0]));
      if (lines.length > 1) part.append(make("ul", {}, lines.slice(1).map((line) => make("li", {}, line))));
    }
    all.append(part);
  });
  page.append(all);
}

// A heading sorts its rows up, then down; figures by their number, cells without any last.
function sorter(heads, show) {
  let sorted = -1, down = false;
  const none = (key) => key === null || key === "" || Number.isNaN(key);
  heads.forEach((head, place) => head.firstChild.addEventListener("click", () => {
    down = sorted === place && !down;
    sorted = place;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    show(place, ([a], [b]) => none(a) - none(b) || (none(a) ? 0 : (typeof a === "string" ? a.localeCompare(b) : a - b || 0) * (down ? -1 : 1)));
  }));
}
const headOf = (title, kind, hint, tag) => make("th", { class: kind, title: hint, scope: "col" }, make("button", { type: "button" }, tag, title.split(/(?= )/).map((word) => (word.includes("-") ? whole(word) : word))));
const figure = (text) => { const match = /^-?[\d.,]+/.exec(text); return text === "equal" || text === "∞" ? Infinity : match ? Number(match[0].replaceAll(",", "")) : NaN; };

const FOLDED = 4;
function cellOf(cell, kind, head) {
  const lines = [cell].flat(), low = /\bdB\b/.test(head) && figure(lines[0] || "") < LOW;
  const folded = lines.length > FOLDED ? make("details", {}, make("summary", {}, `${lines[0]}, … (${lines.length})`), make("div", {}, lines.join(", "))) : lines.length > 1 ? lines.map((line) => make("div", {}, line)) : lines[0];
  return make("td", { class: kind + (low ? " low" : ""), "data-head": head }, folded);
}
function simpleTable(heads, rows) {
  const used = heads.map((head, place) => place).filter((place) => rows.some((row) => [row.cells[place]].flat().some(Boolean)));
  const texts = (place) => rows.map((row) => [row.cells[place]].flat()[0] || "").filter(Boolean);
  const kinds = heads.map((head, place) => (texts(place).every((text) => !Number.isNaN(figure(text)) && text.length < 24) ? "n" : "t"));
  const body = make("tbody", {}, rows.map((row) => row.node = make("tr", {}, row.lead || null, used.map((place) => cellOf(row.cells[place], kinds[place], heads[place])))));
  const tops = used.map((place) => headOf(heads[place], kinds[place]));
  sorter(tops, (at, compare) => {
    const key = (row) => { const text = [row.cells[used[at]]].flat()[0] || ""; return kinds[used[at]] === "n" ? figure(text) : text; };
    body.append(...rows.map((row) => [key(row), row.node]).sort(compare).map(([, node]) => node));
  });
  return fitted(make("table", { class: "simple" }, make("thead", {}, make("tr", {}, rows.some((row) => row.lead) ? make("th", { class: "lead" }) : null, tops)), body), ["", "stack"]);
}
function tables(key) {
  const titles = [...new Set(results.flatMap((one) => one[key].map((table) => table.title)))];
  for (const title of titles) {
    const parts = results.flatMap((one, at) => one[key].filter((table) => table.title === title).map((table) => ({ table, at })));
    const rows = parts.flatMap(({ table, at }) => table.rows.map((cells, place) => {
      const picture = table.pictures[place], tag = several && !table.shared ? mark(at) : null;
      return { cells, lead: picture || tag ? make("td", { class: "lead" }, tag, picture ? make("img", { src: picture, alt: `sample ${cells[1]}` }) : null) : null };
    }));
    if (rows.some((row) => row.lead)) for (const row of rows) row.lead ||= make("td", { class: "lead" });
    page.append(make("h2", {}, title), make("p", { class: "soft" }, parts[0].table.note), make("div", { class: "scroll" }, simpleTable(parts[0].table.heads, rows)));
  }
}

// A table takes the first of some classes with which it is not wider than its frame.
const fits = [];
new ResizeObserver(() => { for (const fit of fits) fit(); }).observe(page);
function fitted(grid, classes) {
  const base = grid.className;
  grid.fit = () => {
    if (!grid.isConnected) return;
    for (const one of classes) {
      grid.className = `${base} ${one}`;
      if (grid.offsetWidth <= grid.parentNode.clientWidth) break;
    }
  };
  fits.push(grid.fit);
  queueMicrotask(grid.fit);
  return grid;
}

function plot() {
  const series = results.map((one) => one.layers.filter((row) => number(row.output_db) !== null).sort((a, b) => a.position - b.position));
  const finite = series.flat().map((row) => number(row.output_db)).filter(Number.isFinite);
  if (!finite.length) return;
  const frame = make("div", { id: "noise" });
  page.append(make("h2", {}, "Noise along the graph"), make("p", { class: "soft" }, "SQNR of the output of each layer in the running model, from the first layer to the last. A step down shows where noise arises; click a point for its layer."), frame);
  const top = largest(finite, 30) + 3, bottom = smallest(finite, 0), count = largest(results.map((one) => one.layers.length), 2);
  const draw = () => {
    const width = Math.max(frame.clientWidth || 1000, 280), height = 220, left = 48;
    const x = (row) => left + ((width - left - 12) * row.position) / (count - 1), y = (value) => 10 + ((height - 32) * (top - Math.max(bottom, Math.min(value, top)))) / (top - bottom);
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "noise along the graph" });
    const step = Math.max(10, 10 * Math.ceil((top - bottom) / 60));
    for (let line = Math.ceil(bottom / step) * step; line <= top; line += step)
      svg.append(make("svg:line", { class: "axis", x1: left, x2: width, y1: y(line), y2: y(line) }), make("svg:text", { x: left - 5, y: y(line) + 4, "text-anchor": "end" }, String(line)));
    svg.append(make("svg:text", { x: left, y: height - 4 }, "layer 1"), make("svg:text", { x: width, y: height - 4, "text-anchor": "end" }, String(count)), make("svg:text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "number of the layer"), make("svg:text", { x: -(height - 22) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, "SQNR of its output, dB"));
    series.forEach((all, at) => {
      const rows = thin(all, (row) => Math.round(x(row)), (row) => number(row.output_db));
      svg.append(make("svg:polyline", { points: rows.map((row) => `${x(row).toFixed(1)},${y(number(row.output_db)).toFixed(1)}`).join(" "), fill: "none", stroke: ink(at), "stroke-width": 1.4 }));
      for (const row of rows)
        svg.append(make("svg:circle", { class: "point", cx: x(row).toFixed(1), cy: y(number(row.output_db)).toFixed(1), r: rows.length > 300 ? 1.8 : 3.2, fill: row.quantized ? ink(at) : "var(--page)", stroke: ink(at), onclick: () => reveal(row.node) },
          make("svg:title", {}, `${row.op_type} ${row.module || row.node}: ${db(row.output_db)} dB${row.quantized ? "" : " (float)"}`)));
    });
    frame.replaceChildren(svg);
  };
  draw();
  let last = frame.clientWidth;
  new ResizeObserver(() => { if (frame.clientWidth !== last) { last = frame.clientWidth; draw(); } }).observe(frame);
}

// Of many points in one column of pixels, the lowest and the highest.
function thin(rows, column, height) {
  if (rows.length < MANY) return rows;
  const ends = new Map();
  for (const row of rows) {
    const key = column(row), pair = ends.get(key);
    if (!pair) ends.set(key, [row, row]);
    else if (height(row) < height(pair[0])) pair[0] = row;
    else if (height(row) > height(pair[1])) pair[1] = row;
  }
  return [...ends.values()].flatMap(([low, high]) => (low === high ? [low] : low.position < high.position ? [low, high] : [high, low]));
}

function histogram(tensor, at) {
  const width = 480, height = 128, base = 98, [low, high] = tensor.edges, most = largest(tensor.counts, 0), bins = tensor.counts.length;
  const x = (value) => 4 + ((width - 8) * (value - low)) / (high - low), bar = (count) => (count ? 4 + (base - 34) * (Math.log(1 + count) / Math.log(1 + most)) : 0);
  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `histogram of ${tensor.tensor}`, class: "chart histogram" });
  const inside = (value) => x(Math.max(low, Math.min(value, high)));
  if (tensor.grid) svg.append(make("svg:rect", { x: inside(tensor.grid[0]), y: 20, width: Math.max(1, inside(tensor.grid[1]) - inside(tensor.grid[0])), height: base - 20, fill: ink(at), opacity: 0.12 }, make("svg:title", {}, `grid ${ends(tensor.grid)}`)));
  tensor.counts.forEach((count, place) => { if (count) svg.append(make("svg:rect", { x: 4 + ((width - 8) * place) / bins, y: base - bar(count), width: (width - 8) / bins - 0.6, height: bar(count), fill: "var(--soft)" }, make("svg:title", {}, `${short(low + ((high - low) * place) / bins)} … : ${count}`))); });
  svg.append(make("svg:line", { class: "axis", x1: 4, x2: width - 4, y1: base, y2: base }));
  const taken = tensor.calibrator.replace("best_error: ", "");
  for (const [name, range] of Object.entries(tensor.thresholds)) for (const end of range) if (end)
    svg.append(make("svg:line", { x1: inside(end), x2: inside(end), y1: name === taken ? 18 : 26, y2: name === taken ? base : 36, stroke: name === taken ? ink(at) : "var(--low)", "stroke-width": name === taken ? 1.6 : 1.2, "stroke-dasharray": name === taken ? "4 2" : null }, make("svg:title", {}, `${name}: ${ends(range)}`)));
  svg.append(make("svg:text", { x: 4, y: base + 14 }, short(low)), make("svg:text", { x: width - 4, y: base + 14, "text-anchor": "end" }, short(high)), make("svg:text", { x: width / 2, y: base + 14, "text-anchor": "middle" }, "value"), make("svg:text", { x: 4, y: 12 }, `count (log scale)${tensor.grid ? "; shaded: the grid" : ""}${Object.keys(tensor.thresholds).length ? "; ticks: ends by calibrator" : ""}`));
  return svg;
}

function channels(tensor, at) {
  const width = 480, height = 126, base = 100, values = [tensor.channels, tensor.equalized_channels], most = largest(values.flat(), 1e-30);
  const floor = Math.max(smallest(values.flat().filter((one) => one > 0), most), most / 1e6), size = (value) => (value > 0 ? 3 + ((base - 24) * Math.log(Math.max(value, floor) / floor + 1e-9)) / (Math.log(most / floor) || 1) : 0);
  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `channel ranges of ${tensor.tensor}`, class: "chart" }), each = (width - 8) / tensor.channels.length;
  values.forEach((bars, part) => bars.forEach((value, place) => { const tall = Math.max(0, size(value)); svg.append(make("svg:rect", { x: 4 + each * (place + part / 2), y: base - tall, width: Math.max(each / 2 - 0.3, 0.4), height: tall, fill: part ? ink(at) : "var(--soft)" }, make("svg:title", {}, `channel part ${place}: ${short(value)} ${part ? "after" : "before"}`))); }));
  svg.append(make("svg:text", { x: 4, y: 12 }, "largest magnitude (log scale): grey before equalization, coloured after"), make("svg:text", { x: width / 2, y: base + 14, "text-anchor": "middle" }, "channel, or run of channels"));
  return svg;
}

function largestChannels(tensor) {
  const { count, samples, median, largest: channels } = tensor.sizes, wide = ratio(tensor.sizes) >= WIDE;
  const rows = channels.map(([channel, size]) => ({ cells: [String(channel), short(size), times(ratio({ median, largest: [[channel, size]] }))] }));
  return [make("p", { class: wide ? "low" : "" }, `In ${samples} sample${samples > 1 ? "s" : ""}, channel ${channels[0][0]} of ${count} reaches ${short(channels[0][1])}, the median one ${short(median)}.`),
    make("div", { class: "scroll" }, simpleTable(["channel", "largest magnitude", "times the median"], rows))];
}

const shade = (value) => `color-mix(in srgb, var(--low) ${value === null ? 0 : Math.round(50 * Math.max(0, Math.min(1, (40 - value) / 40)))}%, var(--page))`;
const HOPS = 2, ABREAST = 4, BOX = { wide: 116, tall: 36, apart: 8, rise: 62 }, NAME = { free: 15, most: 24 }; // letters that fit a box, and that fit it if they are narrow
const readers = results.map(() => null);
function rowsAround(at, centre) {
  const graph = results[at].graph;
  if (!readers[at]) {
    readers[at] = graph.map(() => []);
    graph.forEach((one, place) => one.reads.forEach((from) => readers[at][from].push(place)));
  }
  const seen = new Set([centre]), rows = [[centre]];
  for (const [next, put] of [[(place) => graph[place].reads, "unshift"], [(place) => readers[at][place], "push"]]) {
    let row = [centre];
    for (let hop = 0; hop < HOPS && row.length; hop += 1) {
      row = [...new Set(row.flatMap(next))].filter((place) => !seen.has(place));
      row.forEach((place) => seen.add(place));
      if (row.length) rows[put](row);
    }
  }
  return rows;
}
function around(name, at) {
  const graph = results[at].graph, centre = graph.findIndex((one) => one.node === name);
  if (centre < 0) return null;
  const rows = rowsAround(at, centre), spots = new Map();
  const abreast = Math.min(ABREAST, largest(rows.map((row) => row.length), 1)), width = abreast * (BOX.wide + BOX.apart) + BOX.apart, height = rows.length * BOX.rise - BOX.rise + BOX.tall + 16;
  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "graph", role: "group", "aria-label": `graph around ${name}` });
  rows.forEach((row, line) => {
    const shown = row.slice(0, row.length > abreast ? abreast - 1 : abreast), count = shown.length + (row.length > shown.length ? 1 : 0);
    const x = (place) => (width - count * (BOX.wide + BOX.apart) + BOX.apart) / 2 + place * (BOX.wide + BOX.apart), y = 8 + line * BOX.rise;
    shown.forEach((node, place) => spots.set(node, { x: x(place), y }));
    if (count > shown.length) svg.append(make("svg:text", { x: x(count - 1) + BOX.wide / 2, y: y + 22, "text-anchor": "middle" }, `and ${row.length - shown.length} more`));
  });
  for (const [node, spot] of spots) for (const from of graph[node].reads) {
    const start = spots.get(from);
    if (!start) continue;
    const [x1, y1, x2, y2] = [start.x + BOX.wide / 2, start.y + BOX.tall, spot.x + BOX.wide / 2, spot.y], middle = (y1 + y2) / 2;
    svg.append(make("svg:path", { d: `M${x1},${y1} C${x1},${middle} ${x2},${middle} ${x2},${y2}`, fill: "none", stroke: "var(--soft)" }));
    if (graph[node].pairs.includes(from)) svg.append(make("svg:rect", { x: (x1 + x2) / 2 - 5, y: middle - 5, width: 10, height: 10, rx: 2, fill: ink(at) }, make("svg:title", {}, `a quantizer between ${graph[from].node} and ${graph[node].node}`)));
  }
  for (const [node, spot] of spots) {
    const one = graph[node], known = maps[at].layers.get(one.node), value = number(one.output_db), text = value === null ? "" : `${db(value)} dB`;
    const box = make("svg:rect", { x: spot.x, y: spot.y, width: BOX.wide, height: BOX.tall, rx: 5, stroke: node === centre ? "var(--ink)" : "var(--line)", "stroke-width": node === centre ? 2 : 1 });
    box.style.fill = shade(value);
    const label = one.op_type.length > NAME.most ? `${one.op_type.slice(0, NAME.most - 1)}…` : one.op_type, open = () => reveal(one.node);
    const link = known && node !== centre ? { role: "button", tabindex: 0, class: "point", "aria-label": `${known.op_type} ${known.module || known.node}`, onclick: (event) => { event.stopPropagation(); open(); }, onkeydown: (event) => { if (event.key === "Enter") open(); } } : {};
    svg.append(make("svg:g", link, make("svg:title", {}, `${one.op_type} ${one.node}${text ? `: ${text}` : ""}`), box,
      make("svg:text", { class: "op", x: spot.x + BOX.wide / 2, y: spot.y + (text ? 15 : 22), "text-anchor": "middle", ...(label.length > NAME.free ? { textLength: BOX.wide - 8, lengthAdjust: "spacingAndGlyphs" } : {}) }, label), text ? make("svg:text", { class: "db", x: spot.x + BOX.wide / 2, y: spot.y + 29, "text-anchor": "middle" }, text) : null));
  }
  return make("figure", {}, svg, make("figcaption", { class: "soft" }, "The graph around the layer, from its sources above to its readers below. The more noise, the deeper the colour; a square is a quantizer."));
}

function tensorPart(tensor, at) {
  const figures = [[tensor.role, tensor.format, tensor.calibrator].filter(Boolean).join(", "), tensor.sqnr_db === null ? null : `own noise ${db(tensor.sqnr_db)} dB`, tensor.middle_db === null ? null : `middle half ${db(tensor.middle_db)} dB`, tensor.observed ? `values ${ends(tensor.observed)}` : "not observed", tensor.grid ? `grid ${ends(tensor.grid)}` : null];
  return make("div", {}, make("h3", {}, tensor.tensor), make("p", { class: "soft" }, figures.filter(Boolean).join("; "), `. ${tensor.why}.`), tensor.equalization ? make("p", {}, `Equalized: ${tensor.equalization}.`) : null,
    tensor.counts.length ? histogram(tensor, at) : null, tensor.sizes ? largestChannels(tensor) : null, tensor.channels.length ? channels(tensor, at) : null);
}
function detail(node) {
  return results.flatMap((one, at) => {
    const row = maps[at].layers.get(node);
    if (!row) return [];
    const known = [
      [row.quantized ? "runs in" : "stays in float", row.quantized ? formats(row, at) : row.why],
      ["noise in the running model", row.output_db === null ? null : `inputs ${db(row.input_db) || "∞"} dB, output ${db(row.output_db)} dB`],
      ["sensitivity", row.alone_db === null ? null : `outputs ${db(row.alone_db)} dB with only its group quantized${row.noise_share === null ? "" : `, ${percent(row.noise_share)} of the noise`}${row.rest_db === null ? "" : `, ${db(row.rest_db)} dB with all others quantized`}`],
      ["multiply-adds", row.multiplies === null ? null : percent(row.multiplies)],
      ["engine", row.ran ? `${row.ran}${row.engine_ms === null ? "" : `, ${number(row.engine_ms).toFixed(4)} ms`}` : null],
    ].filter((pair) => pair[1]);
    return [make("h3", {}, mark(at), `${row.op_type} ${row.node}`, row.module ? ` in ${row.module}` : ""), make("dl", {}, known.flatMap(([head, text]) => [make("dt", {}, head), make("dd", {}, text)])),
      around(node, at), make("div", { class: "tensors" }, tensorsOf(row, at).map((tensor) => tensorPart(tensor, at)))];
  });
}
// A diagnosis has tensors without layers.
function looseTensors() {
  const loose = results.flatMap((one, at) => (one.layers.length ? [] : one.tensors.map((tensor) => tensorPart(tensor, at))));
  if (loose.length) page.append(make("h2", {}, "Tensors that causes name"), make("div", { class: "tensors" }, loose));
}

const bodies = new Map();
let bodyOf = () => null; // the table makes rows as they are shown: a page of 100,000 would take minutes
function toggle(node, open) {
  const body = bodyOf(node), row = body.firstChild, shown = row.classList.contains("open");
  if (open === undefined) open = !shown;
  if (open === shown) return;
  row.classList.toggle("open", open);
  row.querySelector(".open-layer").setAttribute("aria-expanded", String(open));
  if (open) body.append(make("tr", { class: "detail" }, make("td", { colspan: row.children.length }, make("div", { class: "inner" }, detail(node)))));
  else body.lastChild.remove();
}
function reveal(node) {
  const body = bodyOf(node);
  if (!body) return;
  if (!body.isConnected) document.getElementById("layers").append(body);
  toggle(node, true);
  body.scrollIntoView({ block: "center" });
}

function table() {
  const order = [...new Set(results.flatMap((one) => one.layers.map((row) => row.node)))];
  if (!order.length) return;
  const first = (node) => maps.map((one) => one.layers.get(node)).find(Boolean);
  const known = (column, at) => results[at].layers.some((row) => ![null, ""].includes(column.value(row, at)));
  const columns = [...shared.map((column) => ({ ...column, at: null })), ...measured.filter((column) => column.both || !several).flatMap((column) => results.map((one, at) => ({ ...column, at })).filter((one) => known(column, one.at)))];
  const main = columns.find((column) => column.at !== null);
  for (const column of columns) if (main && column.title === main.title) column.rank = 1; // the last that a narrow page keeps
  const rowOf = (column, node) => (column.at === null ? first(node) : maps[column.at].layers.get(node));
  const value = (column, node) => { const row = rowOf(column, node); return row ? column.value(row, column.at === null ? 0 : column.at) : null; };
  const classOf = (column, value) => `${column.kind || ""} r${column.rank}${value !== null && ((column.low && value < column.low) || (column.high && value >= column.high)) ? " low" : ""}`;
  const cell = (column, node) => {
    const row = rowOf(column, node);
    if (column.title === "layer") return make("td", { class: "t" }, make("button", { class: "open-layer", type: "button", "aria-expanded": "false" }, row.module || row.node), row.module ? make("small", {}, row.node) : null);
    const found = value(column, node);
    return make("td", { class: classOf(column, found) }, row ? (column.text ? column.text(row, column.at === null ? 0 : column.at) : String(found ?? "")) : "");
  };
  const grid = fitted(make("table", { id: "layers" }), [7, 6, 5, 4, 3, 2, 1, 0].map((rank) => `upto${rank}`));
  const heads = columns.map((column) => headOf(column.title, classOf(column, null), column.hint, column.at === null ? null : mark(column.at)));
  grid.append(make("thead", {}, make("tr", {}, ...heads)));
  const explained = columns.filter((column, place) => column.hint && columns.findIndex((one) => one.title === column.title) === place);
  const legend = make("details", { id: "legend" }, make("summary", {}, "What the columns mean"), make("dl", {}, explained.flatMap((column) => [make("dt", {}, column.title), make("dd", {}, column.hint)])));
  const places = new Set(order);
  bodyOf = (node) => {
    if (!bodies.has(node) && places.has(node))
      bodies.set(node, make("tbody", {}, make("tr", { class: "layer", onclick: () => toggle(node) }, columns.map((column) => cell(column, node)))));
    return bodies.get(node);
  };
  let ordered = order, shown = [], drawn = 0;
  const more = make("button", { type: "button", id: "more", onclick: () => draw(PORTION) });
  function draw(portion) {
    const last = Math.min(shown.length, drawn + portion);
    for (; drawn < last; drawn += 1) grid.append(bodyOf(shown[drawn]));
    more.hidden = drawn === shown.length;
    more.textContent = `${shown.length - drawn} more layers`;
  }
  function show() {
    for (const body of [...grid.tBodies]) body.remove();
    drawn = 0;
    draw(PORTION);
    grid.fit();
  }
  sorter(heads, (place, compare) => {
    ordered = order.map((node) => [value(columns[place], node), node]).sort(compare).map(([, node]) => node);
    filter();
  });
  const words = new Map(order.map((node) => [node, results.flatMap((one, at) => { const row = maps[at].layers.get(node); return row ? [row.op_type, row.node, row.module, row.quantized ? "quantized" : "float", ...row.tensors] : []; }).join(" ").toLowerCase()]));
  const count = make("span", { class: "soft", id: "count" }), text = make("input", { type: "search", id: "filter", placeholder: "filter by operator, module, node or tensor", "aria-label": "filter", oninput: () => filter() });
  const kinds = [...new Set(order.map((node) => first(node).op_type))], kind = make("select", { id: "operator", "aria-label": "operator", onchange: () => filter() }, make("option", { value: "" }, "all operators"), ...kinds.map((one) => make("option", { value: one }, one)));
  const states = { "": () => true, quantized: (row) => row.quantized, float: (row) => !row.quantized };
  const state = make("select", { id: "state", "aria-label": "state", onchange: () => filter() }, make("option", { value: "" }, "quantized and float"), make("option", { value: "quantized" }, "quantized"), make("option", { value: "float" }, "in float"));
  function filter() {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = ordered.filter((node) => {
      const rows = maps.map((one) => one.layers.get(node)).filter(Boolean);
      return wanted.every((word) => words.get(node).includes(word)) && (!kind.value || first(node).op_type === kind.value) && rows.some(states[state.value]);
    });
    count.textContent = `${shown.length} of ${order.length} layers`;
    show();
  }
  page.append(make("h2", {}, "Layers, the one that costs most first"), make("p", { class: "soft" }, [...new Set(results.map((one) => one.measured)), "Click a row for its channels, histograms and the graph around it, and a heading to sort."].join(" ")), make("div", { class: "controls" }, text, kind, state, count), make("div", { class: "scroll" }, grid), more, legend);
  filter();
  new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) draw(PORTION); }, { rootMargin: "600px" }).observe(more);
  addEventListener("beforeprint", () => draw(MANY));
}

function facts() {
  page.append(make("h2", {}, "Source"), make("div", { class: several ? "side" : "" }, ...results.map((one, at) => make("div", {}, several ? make("h3", {}, mark(at), one.label) : null, make("dl", {}, ...one.facts.flatMap(([head, text]) => [make("dt", {}, head), make("dd", {}, make("code", {}, text))]))))));
}

addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
page.replaceChildren();
verdict(); tables("tables"); plot(); table(); looseTensors(); tables("floats"); facts();
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
