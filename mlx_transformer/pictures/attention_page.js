"use strict";
// data: {text, translation, start, kinds: [{name, title, hint, sides, queries, keys, layers}]}
// where layers[l][h][q][k] is a weight. Text reaches the page through textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const VISIBLE = 0.02, NOTABLE = 0.1; // weights: a line is drawn, a word stands out
const COLORS = 8;
const DASHES = ["", "7 3", "2 2", "8 3 2 3"];
const state = {
  kind: data.start.kind,
  layer: data.start.layer,
  heads: new Set(data.start.heads),
  view: "lines",
  pinned: data.start.word, // {side, places}, or null
  hovered: null,
};

const $ = (id) => document.getElementById(id);
const kind = () => data.kinds.find((each) => each.name === state.kind);
const layer = () => kind().layers[state.layer];
const heads = () => [...state.heads].sort((a, b) => a - b);
const active = () => state.hovered || state.pinned;
const isAt = (place, side, i) => place?.side === side && place.places.includes(i);
const percent = (weight) => `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)}%`;
const within = (i, length) => Math.min(Math.max(i, 0), length - 1);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const color = (head) => `var(--head-${head % COLORS})`;
const stroke = (head) => ({
  style: `stroke: ${color(head)}`,
  "stroke-dasharray": DASHES[Math.floor(head / COLORS) % DASHES.length],
});

function sample(head) {
  const line = makeSvg("line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 4, ...stroke(head) });
  return makeSvg("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" }, line);
}

// Controls: native radio buttons and checkboxes, so that keys and screen readers know them.

function choice(type, name, label, checked, onchange, ...extra) {
  const input = make("input", { type, name, checked, onchange });
  return make("label", { className: "choice" }, input, make("span", {}, ...extra, label));
}

function drawControls() {
  $("kinds").append(...data.kinds.map((each) =>
    choice("radio", "kind", each.title, each.name === state.kind, () => {
      const layer = within(state.layer, each.layers.length);
      Object.assign(state, { kind: each.name, layer, pinned: null, hovered: null });
      drawLayers();
      draw();
    })));
  $("views").append(...[["lines", "Lines"], ["map", "Heat map"]].map(([view, label]) =>
    choice("radio", "view", label, view === state.view, () => {
      Object.assign(state, { view, hovered: null });
      draw();
    })));
  drawLayers();
  $("heads").append(...layer().map((_, head) =>
    choice("checkbox", "head", head + 1, state.heads.has(head), (event) => {
      state.heads[event.target.checked ? "add" : "delete"](head);
      draw();
    }, sample(head))));
  $("heads").append(allHeads("All", true), allHeads("None", false));
}

function allHeads(label, on) {
  const onclick = () => {
    state.heads = new Set(on ? layer().keys() : []);
    for (const box of document.querySelectorAll("input[name=head]")) box.checked = on;
    draw();
  };
  return make("button", { type: "button", className: "plain", textContent: label, onclick });
}

function drawLayers() {
  const legend = $("layers").firstElementChild;
  $("layers").replaceChildren(legend, ...kind().layers.map((_, i) =>
    choice("radio", "layer", i + 1, i === state.layer, () => {
      state.layer = i;
      draw();
    })));
}

// Lines: two columns of words and a drawing between them.

function drawLines() {
  const { sides, queries, keys } = kind(), rows = Math.max(queries.length, keys.length);
  const svg = makeSvg("svg", {
    viewBox: `0 0 1 ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
  const names = sides.map((name) => make("p", { className: "side", textContent: name }));
  const box = make("div", { className: "lines" }, names[0], make("span"), names[1],
    column("queries", sides[0], queries), svg, column("keys", sides[1], keys));
  box.style.setProperty("--rows", rows);
  $("picture").replaceChildren(box);
  light();
}

function column(side, name, words) {
  return make("ol", { className: `words ${side}`, ariaLabel: name }, ...words.map((word, i) => {
    const here = { side, places: [i] };
    const button = make("button", {
      type: "button", className: "word", tabIndex: i ? -1 : 0, dir: "auto", textContent: word,
      onpointerenter: (event) => event.pointerType === "mouse" && point(here),
      onpointerleave: () => point(null),
      onfocus: () => button.matches(":focus-visible") && point(here),
      onblur: () => point(null),
      onclick: () => pin(here),
      onkeydown: (event) => moveFocus(event, side, i),
    });
    return make("li", {}, button);
  }));
}

const buttons = (side) => [...document.querySelectorAll(`.words.${side} .word`)];

function point(place) {
  state.hovered = place;
  light();
}

function pin(place) {
  const again = isAt(state.pinned, place.side, place.places[0]);
  Object.assign(state, { pinned: again ? null : place, hovered: null });
  light();
}

function moveFocus(event, side, i) {
  const here = buttons(side), across = buttons(side === "queries" ? "keys" : "queries");
  const beside = across[within(i, across.length)];
  const next = {
    ArrowDown: here[i + 1], ArrowUp: here[i - 1], Home: here[0], End: here.at(-1),
    ArrowLeft: side === "keys" && beside, ArrowRight: side === "queries" && beside,
  }[event.key];
  if (!next) return;
  event.preventDefault();
  // A column is one stop of the Tab key: the word that was last in focus.
  for (const word of here.includes(next) ? here : across) word.tabIndex = word === next ? 0 : -1;
  next.focus();
}

// Show the lines and words of the active word, or of all.
function light() {
  if (state.view !== "lines") return;
  const at = active(), lines = [];
  const most = { queries: {}, keys: {} }; // the greatest weight at each word
  heads().forEach((head, n) => layer()[head].forEach((row, q) => row.forEach((weight, k) => {
    if (at && !at.places.includes(at.side === "queries" ? q : k)) return;
    most.queries[q] = Math.max(most.queries[q] ?? 0, weight);
    most.keys[k] = Math.max(most.keys[k] ?? 0, weight);
    if (weight > VISIBLE) lines.push(line(q, k, weight, head, n));
  })));
  document.querySelector(".lines svg").replaceChildren(...lines);
  for (const side of ["queries", "keys"])
    buttons(side).forEach((button, i) => {
      const on = isAt(at, side, i);
      button.classList.toggle("on", on);
      button.classList.toggle("dim", !on && (most[side][i] ?? 0) < NOTABLE);
      button.ariaPressed = isAt(state.pinned, side, i);
      button.querySelector(".strip")?.remove();
      if (at && at.side !== side) button.append(strip(at, i));
    });
  describe();
}

// Each head has a track of its own in a word's row: lines between two words lie side by side.
function line(q, k, weight, head, n) {
  const count = state.heads.size, crowd = Math.max(count, 4);
  const track = 0.5 + ((n - (count - 1) / 2) * 0.7) / crowd;
  return makeSvg("line", {
    x1: 0, x2: 1, y1: q + track, y2: k + track, ...stroke(head),
    "stroke-width": 0.4 + weight * Math.max(20 / crowd, active() ? 4 : 2.6),
    "stroke-opacity": Math.sqrt(weight).toFixed(3),
  });
}

// One box a head for the weight between the active word and word i of the other side.
function strip(at, i) {
  const boxes = heads().map((head) => {
    const box = make("i");
    box.style.background = color(head);
    box.style.opacity = toward(at, head, i);
    return box;
  });
  return make("span", { className: "strip", ariaHidden: "true" }, ...boxes);
}

function toward(at, head, i) {
  const matrix = layer()[head], pair = at.side === "queries" ? (p) => [p, i] : (p) => [i, p];
  return Math.max(...at.places.map(pair).map(([q, k]) => matrix[q][k]));
}

// Heat maps: one a head.

function drawMaps() {
  $("picture").replaceChildren(make("div", { className: "maps" }, ...heads().map(heatMap)));
  describe();
}

function heatMap(head) {
  const { queries, keys } = kind();
  const columns = names("columns", keys), rows = names("rows", queries);
  const cells = make("div", {
    className: "cells", tabIndex: 0, role: "application",
    ariaLabel: `Heat map of head ${head + 1}; arrow keys read the weights`,
  }, canvas(layer()[head]));
  explore(cells, queries.length, keys.length, (q, k) => {
    mark(cells, columns.children[k], rows.children[q], q, k);
    const weight = percent(layer()[head][q][k]);
    tell(`Head ${head + 1}: “${queries[q]}” attends to “${keys[k]}” with ${weight}`);
  });
  const grid = make("div", { className: "grid" }, columns, rows, cells);
  grid.style.setProperty("--n-keys", keys.length);
  grid.style.setProperty("--n-queries", queries.length);
  const caption = make("figcaption", {}, sample(head), `Head ${head + 1}`);
  return make("figure", {}, caption, make("div", { className: "scroll" }, grid));
}

function names(className, words) {
  const spans = words.map((word) => make("span", { textContent: word, dir: "auto" }));
  return make("div", { className, ariaHidden: "true" }, ...spans);
}

// A pixel a cell, the more opaque the greater its weight; the style makes it larger.
function canvas(matrix) {
  const element = make("canvas", { width: matrix[0].length, height: matrix.length });
  const heat = getComputedStyle(document.body).getPropertyValue("--heat").split(",").map(Number);
  const image = new ImageData(element.width, element.height);
  image.data.set(matrix.flat().flatMap((weight) => [...heat, Math.round(255 * weight)]));
  element.getContext("2d").putImageData(image, 0, 0);
  return element;
}

// Calls show(row, column) for the cell under the pointer, or where the arrow keys lead.
function explore(cells, height, width, show) {
  let place = null;
  const go = (q, k) => show(...(place = [within(q, height), within(k, width)]));
  cells.onpointermove = cells.onpointerdown = (event) => {
    const area = cells.firstElementChild.getBoundingClientRect();
    go(Math.floor(((event.clientY - area.top) / area.height) * height),
      Math.floor(((event.clientX - area.left) / area.width) * width));
  };
  cells.onfocus = () => cells.matches(":focus-visible") && !place && go(0, 0);
  cells.onkeydown = (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [down, right] = steps[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    const [q, k] = place ?? [0, 0];
    go(q + down, k + right);
  };
}

function mark(cells, column, row, q, k) {
  for (const old of document.querySelectorAll(".cursor")) old.remove();
  for (const old of document.querySelectorAll(".grid .on")) old.classList.remove("on");
  const cursor = make("div", { className: "cursor" });
  cursor.style.left = `calc(1px + ${k} * var(--cell))`;
  cursor.style.top = `calc(1px + ${q} * var(--cell))`;
  cells.append(cursor);
  column.classList.add("on");
  row.classList.add("on");
}

// What is seen, in words and numbers.

const HELP = {
  lines: "Point at a word or tap it to see its lines. "
    + "Keys: Tab, arrows, Enter to keep it, Escape to let it go.",
  map: "Point at a cell or tap it to see its weight. Keys: Tab, arrows.",
};

function describe() {
  if (!state.heads.size) return tell("No head is chosen.");
  const at = state.view === "lines" && active();
  if (!at) return tell(HELP[state.view]);
  const words = at.places.map((i) => kind()[at.side][i]).join(" ").replaceAll(" ·", "");
  const title = `“${words}” ${at.side === "queries" ? "attends to" : "is attended to by"}`;
  const list = make("ul", {}, ...heads().map((head) => greatest(at, head)));
  $("details").replaceChildren(make("h2", { textContent: title }), list);
}

// A head and the three words of greatest weight.
function greatest(at, head) {
  const others = kind()[at.side === "queries" ? "keys" : "queries"];
  const weighed = others.map((word, i) => ({ word, weight: toward(at, head, i) }));
  const top = weighed.sort((a, b) => b.weight - a.weight).slice(0, 3);
  const items = top.flatMap(({ word, weight }, i) =>
    [i ? ", " : " ", make("span", { textContent: `${word} ${percent(weight)}` })]);
  const name = make("b", { textContent: `Head ${head + 1}` });
  return make("li", {}, sample(head), make("div", {}, name, ...items));
}

function tell(text) {
  $("details").replaceChildren(make("p", { textContent: text }));
}

function draw() {
  $("hint").textContent = kind().hint;
  (state.view === "lines" ? drawLines : drawMaps)();
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  Object.assign(state, { pinned: null, hovered: null });
  light();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.title = `Attention: ${data.text}`;
$("text").textContent = data.text;
$("translation").textContent = data.translation;
drawControls();
draw();
