"use strict";
// data: {text, translation, kinds: [{name, title, hint, queries, keys, layers}], start}
// where layers[l][h][q][k] is a weight. Text reaches the page through textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const VISIBLE = 0.02, NOTABLE = 0.1, COLORS = 8;
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
const kind = () => data.kinds.find((k) => k.name === state.kind);
const layer = () => kind().layers[state.layer];
const active = () => state.hovered || state.pinned;
const percent = (weight) => `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)}%`;
const heads = () => [...state.heads].sort((a, b) => a - b);

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
  return makeSvg("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" },
    makeSvg("line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 4, ...stroke(head) }));
}

// Controls: native radio buttons and checkboxes, so that keys and screen readers know them.

function choice(fieldset, type, name, label, checked, onchange, ...extra) {
  const input = make("input", { type, name, checked, onchange });
  $(fieldset).append(make("label", { className: "choice" }, input, make("span", {}, ...extra, label)));
  return input;
}

function clear(fieldset) {
  for (const child of [...$(fieldset).children].slice(1)) child.remove();
}

function drawControls() {
  for (const k of data.kinds)
    choice("kinds", "radio", "kind", k.title, k.name === state.kind, () => {
      Object.assign(state, { kind: k.name, pinned: null, hovered: null });
      state.layer = Math.min(state.layer, k.layers.length - 1);
      drawLayers();
      draw();
    });
  for (const [view, label] of [["lines", "Lines"], ["map", "Heat map"]])
    choice("views", "radio", "view", label, view === state.view, () => {
      Object.assign(state, { view, hovered: null });
      draw();
    });
  drawLayers();
  layer().forEach((_, head) =>
    choice("heads", "checkbox", "head", head + 1, state.heads.has(head), (event) => {
      state.heads[event.target.checked ? "add" : "delete"](head);
      draw();
    }, sample(head)));
  for (const [label, on] of [["All", true], ["None", false]])
    $("heads").append(make("button", { type: "button", className: "plain", textContent: label, onclick: () => {
      state.heads = new Set(on ? layer().keys() : []);
      for (const box of document.querySelectorAll("input[name=head]")) box.checked = on;
      draw();
    } }));
}

function drawLayers() {
  clear("layers");
  kind().layers.forEach((_, i) =>
    choice("layers", "radio", "layer", i + 1, i === state.layer, () => {
      state.layer = i;
      draw();
    }));
}

// Lines

function drawLines() {
  const { queries, keys } = kind(), rows = Math.max(queries.length, keys.length);
  const svg = makeSvg("svg", { viewBox: `0 0 1 ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const box = make("div", { className: "lines" }, column("queries", queries), svg, column("keys", keys));
  box.style.setProperty("--rows", rows);
  $("picture").replaceChildren(box);
  light();
}

function column(side, words) {
  const list = make("ol", { className: `words ${side}`, ariaLabel: side === "queries" ? "From" : "To" });
  words.forEach((word, i) => {
    const button = make("button", { type: "button", className: "word", tabIndex: i ? -1 : 0, dir: "auto", textContent: word });
    const here = { side, places: [i] };
    button.onpointerenter = (event) => event.pointerType === "mouse" && point(here);
    button.onpointerleave = () => point(null);
    button.onfocus = () => button.matches(":focus-visible") && point(here);
    button.onblur = () => point(null);
    button.onclick = () => pin(here);
    button.onkeydown = (event) => moveFocus(event, side, i);
    list.append(make("li", {}, button));
  });
  return list;
}

function point(place) {
  state.hovered = place;
  light();
}

function pin(place) {
  const again = state.pinned && state.pinned.side === place.side && state.pinned.places.join() === place.places.join();
  state.pinned = again ? null : place;
  state.hovered = null;
  light();
}

function moveFocus(event, side, i) {
  const here = buttons(side), across = buttons(side === "queries" ? "keys" : "queries");
  const beside = across[Math.min(i, across.length - 1)];
  const next = {
    ArrowDown: here[i + 1], ArrowUp: here[i - 1], Home: here[0], End: here.at(-1),
    ArrowLeft: side === "keys" && beside, ArrowRight: side === "queries" && beside,
  }[event.key];
  if (!next) return;
  event.preventDefault();
  // A column is one stop of the Tab key: the word that was last in focus.
  for (const button of here.includes(next) ? here : across) button.tabIndex = button === next ? 0 : -1;
  next.focus();
}

const buttons = (side) => [...document.querySelectorAll(`.words.${side} .word`)];

// The lines and words of the active word, or all of them.
function light() {
  if (state.view !== "lines") return describe();
  const at = active(), shown = heads(), lines = [];
  const most = { queries: {}, keys: {} };
  shown.forEach((head, n) => {
    const track = ((n - (shown.length - 1) / 2) * 0.7) / Math.max(shown.length, 4);
    layer()[head].forEach((row, q) => row.forEach((weight, k) => {
      if (at && !at.places.includes(at.side === "queries" ? q : k)) return;
      most.queries[q] = Math.max(most.queries[q] || 0, weight);
      most.keys[k] = Math.max(most.keys[k] || 0, weight);
      if (weight > VISIBLE)
        lines.push(makeSvg("line", {
          x1: 0, x2: 1, y1: q + 0.5 + track, y2: k + 0.5 + track, ...stroke(head),
          "stroke-width": 0.4 + weight * Math.max(20 / Math.max(shown.length, 4), at ? 4 : 2.6),
          "stroke-opacity": Math.sqrt(weight).toFixed(3),
        }));
    }));
  });
  document.querySelector(".lines svg").replaceChildren(...lines);
  for (const side of ["queries", "keys"])
    buttons(side).forEach((button, i) => {
      const on = Boolean(at && at.side === side && at.places.includes(i));
      const pinned = Boolean(state.pinned && state.pinned.side === side && state.pinned.places.includes(i));
      button.classList.toggle("on", on);
      button.classList.toggle("dim", !on && (most[side][i] || 0) < NOTABLE);
      button.ariaPressed = pinned;
      button.querySelector(".strip")?.remove();
      if (at && at.side !== side) button.append(strip(shown, (head) => toward(at, layer()[head], i)));
    });
  describe();
}

// The greatest weight between the active word and word i of the other side.
function toward(at, matrix, i) {
  return Math.max(...at.places.map((place) => (at.side === "queries" ? matrix[place][i] : matrix[i][place])));
}

function strip(shown, weightOf) {
  const boxes = shown.map((head) => {
    const box = make("i");
    box.style.background = color(head);
    box.style.opacity = weightOf(head);
    return box;
  });
  return make("span", { className: "strip", ariaHidden: "true" }, ...boxes);
}

// Heat maps

function drawMaps() {
  const maps = make("div", { className: "maps" });
  for (const head of heads()) maps.append(map(head));
  $("picture").replaceChildren(maps);
  describe();
}

function map(head) {
  const { queries, keys } = kind(), matrix = layer()[head];
  const canvas = make("canvas", { width: keys.length, height: queries.length });
  const [r, g, b] = getComputedStyle(document.body).getPropertyValue("--heat").split(",").map(Number);
  const image = new ImageData(keys.length, queries.length);
  image.data.set(matrix.flat().flatMap((weight) => [r, g, b, Math.round(255 * weight)]));
  canvas.getContext("2d").putImageData(image, 0, 0);
  const names = (side, words) => make("div", { className: side, ariaHidden: "true" },
    ...words.map((word) => make("span", { textContent: word, dir: "auto" })));
  const columns = names("columns", keys), rows = names("rows", queries);
  const cells = make("div", { className: "cells", tabIndex: 0, role: "application",
    ariaLabel: `Heat map of head ${head + 1}; arrow keys read the weights` }, canvas);
  const grid = make("div", { className: "grid" }, columns, rows, cells);
  grid.style.setProperty("--n-keys", keys.length);
  grid.style.setProperty("--n-queries", queries.length);
  let place = null;
  const show = (q, k) => {
    place = [q, k];
    mark(cells, columns, rows, q, k);
    describeCell(head, q, k);
  };
  cells.onpointermove = cells.onpointerdown = (event) => {
    const area = canvas.getBoundingClientRect();
    const q = Math.floor(((event.clientY - area.top) / area.height) * queries.length);
    const k = Math.floor(((event.clientX - area.left) / area.width) * keys.length);
    if (matrix[q]?.[k] !== undefined) show(q, k);
  };
  cells.onfocus = () => cells.matches(":focus-visible") && !place && show(0, 0);
  cells.onkeydown = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [q, k] = place || [0, 0];
    show(Math.min(Math.max(q + step[0], 0), queries.length - 1), Math.min(Math.max(k + step[1], 0), keys.length - 1));
  };
  return make("figure", { className: "map" },
    make("figcaption", {}, sample(head), `Head ${head + 1}`), make("div", { className: "scroll" }, grid));
}

function mark(cells, columns, rows, q, k) {
  for (const old of document.querySelectorAll(".cursor")) old.remove();
  for (const old of document.querySelectorAll(".grid .on")) old.classList.remove("on");
  const cursor = make("div", { className: "cursor" });
  cursor.style.left = `calc(1px + ${k} * var(--cell))`;
  cursor.style.top = `calc(1px + ${q} * var(--cell))`;
  cells.append(cursor);
  columns.children[k].classList.add("on");
  rows.children[q].classList.add("on");
}

// What is seen, in words and numbers.

function describe() {
  const at = state.view === "lines" && active(), { queries, keys } = kind();
  if (!state.heads.size) return tell("No head is chosen.");
  if (!at)
    return tell(state.view === "lines"
      ? "Point at a word or tap it to see its lines. Keys: Tab, arrows, Enter to keep it, Escape to let it go."
      : "Point at a cell or tap it to see its weight. Keys: Tab, arrows.");
  const name = at.places.map((i) => kind()[at.side][i]).join(" ").replaceAll(" ·", "");
  const others = at.side === "queries" ? keys : queries;
  const list = make("ul");
  for (const head of heads()) {
    const top = others.map((word, i) => [toward(at, layer()[head], i), word])
      .sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([weight]) => weight > 0.005);
    const words = top.flatMap(([weight, word], i) => [i ? ", " : " ", make("span", { textContent: `${word} ${percent(weight)}` })]);
    list.append(make("li", {}, sample(head), make("div", {}, make("b", { textContent: `Head ${head + 1}` }), ...words)));
  }
  const title = at.side === "queries" ? `“${name}” attends to` : `“${name}” is attended to by`;
  $("details").replaceChildren(make("h2", { textContent: title }), list);
}

function describeCell(head, q, k) {
  const { queries, keys } = kind();
  tell(`Head ${head + 1}: “${queries[q]}” attends to “${keys[k]}” with ${percent(layer()[head][q][k])}`);
}

function tell(text) {
  $("details").replaceChildren(make("p", { textContent: text }));
}

function draw() {
  $("hint").textContent = kind().hint;
  (state.view === "lines" ? drawLines : drawMaps)();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") Object.assign(state, { pinned: null, hovered: null }), light();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.title = `Attention: ${data.text}`;
$("text").textContent = data.text;
$("translation").textContent = data.translation;
drawControls();
draw();
