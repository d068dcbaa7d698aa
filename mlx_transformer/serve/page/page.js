"use strict";
// Text reaches the page through textContent and value alone. Requests go to this server only.
const PAUSE = 250; // milliseconds without a key before a text is translated
const KEPT = 100; // translations in the history
const AUTO = "auto";

const $ = (id) => document.getElementById(id);
const state = {
  languages: [], // {code, name, targets}
  lines: [], // sentences by line: {source, text, words, sourceWords, alignment, element}
  request: null, // the AbortController of the one under way
  timer: 0,
  limit: Infinity,
  key: sessionStorage.getItem("key") ?? "",
  open: null, // the sentence whose menu is shown
  detected: null, // the language the text was found to be in
};

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const stored = (name, fallback) => JSON.parse(localStorage.getItem(name) ?? "null") ?? fallback;
const store = (name, value) => localStorage.setItem(name, JSON.stringify(value));
const sentences = () => state.lines.flat();
const translation = () =>
  state.lines.map((line) => line.map((each) => each.text).filter(Boolean).join(" ")).join("\n");

// Requests

async function post(path, values, signal) {
  const body = JSON.stringify({ ...values, api_key: state.key || null });
  const answer = await fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body, signal,
  });
  if (answer.ok) return answer;
  if (answer.status === 403) $("unlock").hidden = false;
  throw new Error((await answer.json()).error);
}

// Server-sent events of an answer, as [name, data].
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

const pair = () => ({ source: $("source").value, target: $("target").value });

// Translating

function soon() {
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, PAUSE);
}

async function translate() {
  clearTimeout(state.timer);
  state.request?.abort();
  closeMenu();
  const text = $("text").value;
  if (!text.trim()) return showLines([]);
  if (text.length > state.limit) return tell(`This is longer than ${state.limit} characters.`, true);
  const request = (state.request = new AbortController());
  tell("Translating …");
  try {
    const answer = await post("stream", { q: text, ...pair() }, request.signal);
    for await (const [name, data] of events(answer)) follow(name, data, text);
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message, true);
  }
}

function follow(name, data, text) {
  if (name === "start") {
    showDetected(data.detectedLanguage);
    const lines = data.lines.length ? data.lines : [1];
    showLines(lines.map((count) => Array.from({ length: count }, blank)));
  } else if (name === "piece") {
    const sentence = sentences()[data.sentence];
    sentence.text += data.text;
    sentence.element.append(data.text);
  } else if (name === "sentence") {
    finish(sentences()[data.sentence], data);
  } else if (name === "done") {
    // A text in the right language already has no sentences to tell of.
    if (data.translatedText !== translation()) showWhole(data.translatedText);
    tell("");
    remember(text, translation());
  } else {
    tell(data.error, true);
  }
}

function blank() {
  const element = make("span", { className: "sentence growing", tabIndex: 0, role: "button" });
  const sentence = { source: "", text: "", words: [], sourceWords: [], alignment: [], element };
  element.onclick = () => openMenu(sentence);
  element.onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    openMenu(sentence);
  };
  return sentence;
}

function showWhole(text) {
  showLines([[blank()]]);
  finish(sentences()[0], { source: text, text, words: [], sourceWords: [], alignment: [] });
}

function showLines(lines) {
  state.lines = lines;
  const parts = lines.flatMap((line, i) => [
    ...(i ? ["\n"] : []),
    ...line.flatMap((sentence, j) => [...(j ? [" "] : []), sentence.element]),
  ]);
  $("translation").replaceChildren(...parts);
  $("shadow").replaceChildren();
  ready();
}

function finish(sentence, data) {
  const { source, text, words, sourceWords, alignment } = data;
  Object.assign(sentence, { source, text, words, sourceWords, alignment });
  sentence.element.classList.remove("growing");
  sentence.element.replaceChildren(...wordsOf(sentence));
  ready();
}

function ready() {
  const nothing = !translation().trim();
  $("copy").disabled = $("save").disabled = nothing;
  if (nothing && !state.lines.length) tell("");
}

// Words and their counterparts

// Where each word stands in a text, one after the other: [start, end].
function places(text, words, from = 0) {
  return words.map((word) => {
    const start = text.indexOf(word, from);
    if (start < 0) return null;
    from = start + word.length;
    return [start, from];
  });
}

function wordsOf(sentence) {
  const { text, words } = sentence, parts = [];
  let end = 0;
  places(text, words).forEach((place, i) => {
    if (!place) return;
    const word = make("span", { className: "word", textContent: text.slice(...place) });
    word.onpointerenter = () => point(sentence, word, i);
    word.onpointerleave = () => unpoint();
    parts.push(text.slice(end, place[0]), word);
    end = place[1];
  });
  return [...parts, text.slice(end)];
}

function point(sentence, word, i) {
  word.classList.add("on");
  const wanted = sentence.alignment.filter(([, target]) => target === i).map(([source]) => source);
  markSource(sentence, wanted);
}

function unpoint() {
  for (const word of document.querySelectorAll(".word.on")) word.classList.remove("on");
  $("shadow").replaceChildren();
}

// Where the sentences stand in the text on the left; null where it has changed since.
function sourceStarts() {
  const text = $("text").value;
  let from = 0;
  return sentences().map(({ source }) => {
    const start = source ? text.indexOf(source, from) : -1;
    if (start >= 0) from = start + source.length;
    return start;
  });
}

function markSource(sentence, wanted) {
  const text = $("text").value, start = sourceStarts()[sentences().indexOf(sentence)];
  if (start < 0) return;
  const parts = [];
  let end = 0;
  places(text, sentence.sourceWords, start).forEach((place, i) => {
    if (!place || !wanted.includes(i)) return;
    parts.push(text.slice(end, place[0]), make("mark", { textContent: text.slice(...place) }));
    end = place[1];
  });
  $("shadow").replaceChildren(...parts, text.slice(end));
}

// From the text on the left to the translation: the word under the pointer or the caret.
function pointFromSource(offset) {
  unpoint();
  const text = $("text").value;
  sourceStarts().forEach((start, n) => {
    const sentence = sentences()[n];
    if (start < 0 || offset < start || offset > start + sentence.source.length) return;
    const i = places(text, sentence.sourceWords, start)
      .findIndex((place) => place && place[0] <= offset && offset <= place[1]);
    if (i < 0) return;
    markSource(sentence, [i]);
    const words = sentence.element.querySelectorAll(".word");
    for (const [source, target] of sentence.alignment)
      if (source === i) words[target]?.classList.add("on");
  });
}

// The menu of a sentence

async function openMenu(sentence) {
  if (!sentence.source || !sentence.text || sentence.element.classList.contains("growing")) return;
  closeMenu();
  state.open = sentence;
  sentence.element.classList.add("open");
  $("said").textContent = "Other ways to say it";
  $("others").replaceChildren();
  placeMenu(sentence.element);
  try {
    const answer = await post("translate", { q: sentence.source, ...pair(), alternatives: 4 });
    const { translatedText, alternatives } = await answer.json();
    if (state.open === sentence) showOthers(sentence, [translatedText, ...alternatives]);
  } catch (error) {
    $("said").textContent = error.message;
  }
}

// Below the sentence, and within the page, which is measured while the menu does not widen it.
function placeMenu(element) {
  const box = element.getBoundingClientRect(), room = document.documentElement.clientWidth - 12;
  $("menu").hidden = false;
  $("menu").style.left = 0;
  const left = Math.max(12, Math.min(box.left, room - $("menu").offsetWidth));
  $("menu").style.left = `${left + scrollX}px`;
  $("menu").style.top = `${box.bottom + scrollY + 6}px`;
}

function showOthers(sentence, texts) {
  const others = texts.filter((text) => text !== sentence.text);
  if (!others.length) $("said").textContent = "There is no other way to say it.";
  $("others").replaceChildren(...others.map((text) => {
    const button = make("button", { type: "button", textContent: text });
    button.onclick = () => pick(sentence, text);
    return make("li", {}, button);
  }));
  $("others").querySelector("button")?.focus();
}

function pick(sentence, text) {
  finish(sentence, { ...sentence, text, words: [], alignment: [] });
  closeMenu();
  sentence.element.focus();
  remember($("text").value, translation());
}

function closeMenu() {
  state.open?.element.classList.remove("open");
  state.open = null;
  $("menu").hidden = true;
}

function look() {
  const { source, text } = state.open;
  const values = { q: source, translation: text, format: "html", api_key: state.key, ...pair() };
  $("ask").replaceChildren(...Object.entries(values).map(([name, value]) =>
    make("input", { type: "hidden", name, value })));
  closeMenu();
  $("attention").showModal();
  $("ask").submit();
}

// Languages

function option({ code, name }) {
  return make("option", { value: code, textContent: name });
}

function showLanguages({ source, target }) {
  const translatable = state.languages.filter(({ code, targets }) => targets.some((t) => t !== code));
  $("source").replaceChildren(
    option({ code: AUTO, name: "Detect the language" }), ...translatable.map(option));
  $("source").value = source;
  if (!$("source").value) $("source").value = AUTO;
  showTargets(target);
}

function showTargets(wanted) {
  const source = state.languages.find(({ code }) => code === $("source").value);
  const isTarget = ({ code }) => source
    ? code !== source.code && source.targets.includes(code)
    : state.languages.some((each) => each.code !== code && each.targets.includes(code));
  const targets = state.languages.filter(isTarget);
  $("target").replaceChildren(...targets.map(option));
  if (targets.some(({ code }) => code === wanted)) $("target").value = wanted;
  $("text").lang = source?.code ?? "";
  $("translation").lang = $("target").value;
  store("pair", pair());
  showSwap();
}

// The language of the text, which may have been detected.
const sourceLanguage = () => $("source").value === AUTO ? state.detected : $("source").value;

function showSwap() {
  const back = state.languages.find(({ code }) => code === $("target").value);
  $("swap").disabled = back?.code === sourceLanguage() || !back?.targets.includes(sourceLanguage());
}

function showDetected(detected) {
  const language = detected && state.languages.find(({ code }) => code === detected.language);
  $("source").options[0].textContent = language
    ? `Detected: ${language.name}` : "Detect the language";
  state.detected = language?.code ?? null;
  showSwap();
}

function swap() {
  const text = translation();
  showLanguages({ source: $("target").value, target: sourceLanguage() });
  if (text) $("text").value = text;
  grown();
  translate();
}

// Text in and out

function grown() {
  const box = $("text"), length = box.value.length;
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
  $("clear").hidden = !length;
  $("count").textContent = length ? `${length.toLocaleString()} characters` : "";
}

function setText(text) {
  $("text").value = text;
  grown();
  translate();
}

async function openFile(file) {
  if (!file) return;
  if (file.size > 4 * state.limit) return tell(`${file.name} is too large.`, true);
  state.file = file.name;
  setText((await file.text()).replaceAll("\r\n", "\n"));
}

function save() {
  const name = (state.file ?? "translation.txt").replace(/(\.[^.]*)?$/, `.${$("target").value}$&`);
  const link = make("a", { download: name });
  link.href = URL.createObjectURL(new Blob([translation()], { type: "text/plain" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function copy() {
  await navigator.clipboard.writeText(translation());
  tell("Copied");
}

function tell(text, isWrong = false) {
  $("state").textContent = text;
  $("state").classList.toggle("wrong", isWrong);
}

// History, in this browser only

function remember(text, translated) {
  const item = { text, translated, ...pair() };
  const before = stored("history", []).filter((each, i) =>
    each.text !== text && !(i === 0 && text.startsWith(each.text)));
  store("history", [item, ...before].slice(0, KEPT));
  showHistory();
}

function showHistory() {
  const items = stored("history", []);
  $("past").hidden = !items.length;
  $("history").replaceChildren(...items.map((item) => {
    const button = make("button", { type: "button" },
      make("span", { textContent: item.text }), make("span", { textContent: item.translated }));
    button.onclick = () => {
      showLanguages(item);
      setText(item.text);
      $("text").focus();
    };
    return make("li", {}, button);
  }));
}

// Everything the page reacts to

function listen() {
  $("text").oninput = () => { grown(); unpoint(); soon(); };
  $("text").onkeydown = (event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) translate();
  };
  $("text").onpointermove = (event) => {
    const at = document.caretPositionFromPoint?.(event.clientX, event.clientY);
    if (at?.offsetNode === $("text")) pointFromSource(at.offset);
  };
  $("text").onpointerleave = unpoint;
  $("source").onchange = () => { showTargets($("target").value); translate(); };
  $("target").onchange = () => { showTargets($("target").value); translate(); };
  $("swap").onclick = swap;
  $("clear").onclick = () => { state.file = null; setText(""); $("text").focus(); };
  $("copy").onclick = copy;
  $("save").onclick = save;
  $("file").onchange = (event) => openFile(event.target.files[0]);
  $("look").onclick = look;
  $("close").onclick = () => $("attention").close();
  $("forget").onclick = () => { store("history", []); showHistory(); };
  $("unlock").onsubmit = (event) => {
    event.preventDefault();
    state.key = $("key").value;
    sessionStorage.setItem("key", state.key);
    $("unlock").hidden = true;
    translate();
  };
  document.onkeydown = (event) => {
    if (event.key !== "Escape" || !state.open) return;
    const { element } = state.open;
    closeMenu();
    element.focus();
  };
  document.onpointerdown = (event) => {
    if (!$("menu").contains(event.target)) closeMenu();
  };
  for (const name of ["dragenter", "dragover"])
    document.addEventListener(name, (event) => { event.preventDefault(); $("drop").hidden = false; });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) $("drop").hidden = true;
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").hidden = true;
    openFile(event.dataTransfer.files[0]);
  });
}

async function start() {
  listen();
  showHistory();
  const [languages, settings] = await Promise.all(
    ["languages", "frontend/settings"].map(async (path) => (await fetch(path)).json()));
  state.languages = languages;
  state.limit = settings.charLimit;
  $("unlock").hidden = !settings.keyRequired || Boolean(state.key);
  const { source, target } = settings.language;
  showLanguages(stored("pair", { source: source.code, target: target.code }));
  grown();
  if ($("text").value) translate();
}

start();
