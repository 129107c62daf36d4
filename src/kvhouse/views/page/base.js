"use strict";
// What every picture needs: the data, texts, numbers with their units, colours, and the tooltip.

const data = JSON.parse(document.getElementById("data").textContent);
const texts = data.texts;

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

/** An array as Python packed it. */
function unpack({ type, base64 }) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return new ARRAYS[type](bytes.buffer);
}

/** One of the texts, its {0} and {1} filled in. */
function say(name, ...values) {
  return texts[name].replace(/\{(\d)\}/g, (_, place) => values[place]);
}

const NUMBERS = new Intl.NumberFormat("en-US");

/** A number with three significant digits, or all of its digits before the point. */
function number(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return Math.abs(value) >= 1000 ? NUMBERS.format(Math.round(value)) : String(+value.toFixed(digits));
}

function gib(bytes) {
  return bytes < 2 ** 30 ? `${number(bytes / 2 ** 20)} MiB` : `${number(bytes / 2 ** 30)} GiB`;
}

/** The unit that times up to ``longest`` seconds are shown in, and its length. */
function timeUnit(longest) {
  if (longest >= 3 * 3600) return { name: "h", seconds: 3600 };
  if (longest >= 600) return { name: "min", seconds: 60 };
  return longest >= 1 ? { name: "s", seconds: 1 } : { name: "ms", seconds: 1e-3 };
}

function duration(seconds) {
  const unit = seconds >= 600 ? timeUnit(seconds) : { name: "s", seconds: 1 };
  if (seconds > 0 && seconds < 1) return `${+(seconds * 1000).toPrecision(3)} ms`;
  return `${number(seconds / unit.seconds)} ${unit.name}`;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** A colour of the style sheet. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Red, green and blue of a colour that is written with six digits. */
function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** An SVG element. */
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** An HTML element with a class. */
function html(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** A patch of a colour, to stand before what has it. */
function swatchOf(background) {
  const swatch = html("i", "swatch");
  swatch.style.background = background;
  return swatch;
}

const tooltip = document.getElementById("tooltip");

/** Show lines beside the pointer; each is a text, or a colour and a text. */
function showTooltip(event, lines) {
  tooltip.replaceChildren(
    ...lines.map((line) =>
      typeof line === "string" ? html("div", "", line) : html("div", "", swatchOf(line[0]), line[1]),
    ),
  );
  tooltip.hidden = false;
  const { clientWidth, clientHeight } = document.documentElement;
  const left = Math.min(event.clientX + 14, clientWidth - tooltip.offsetWidth - 4);
  const below = event.clientY + 14;
  const fits = below + tooltip.offsetHeight < clientHeight;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${fits ? below : Math.max(4, event.clientY - tooltip.offsetHeight - 14)}px`;
}

/** Show what ``describe`` says of where the pointer is over an element. */
function hover(element, describe) {
  const show = (event) => {
    const box = element.getBoundingClientRect();
    const lines = describe(event.clientX - box.left, event.clientY - box.top);
    if (lines) showTooltip(event, lines);
    else tooltip.hidden = true;
  };
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerdown", show);
  element.addEventListener("pointerleave", () => (tooltip.hidden = true));
}

/** Fill a legend: pairs of a swatch's class or colour and a text. */
function legend(list, entries) {
  list.replaceChildren(
    ...entries.map(([swatch, text]) => html("li", "", swatch, text)),
  );
}
