"use strict";
// Formats values. Whatever a sandbox or its owner wrote is shown as text, never as HTML.

const MB = 2 ** 20;

const size = (bytes) =>
  bytes >= 1024 * MB ? `${(bytes / MB / 1024).toFixed(1)} GB` : `${Math.round(bytes / MB)} MB`;

// "96 of 256 MB", and "96 MB of 2.0 GB".
function part(bytes, limit) {
  const [value, unit] = size(bytes).split(" ");
  const whole = size(limit);
  return `${whole.endsWith(unit) ? value : `${value} ${unit}`} of ${whole}`;
}

function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  return whole < 172800 ? `${Math.floor(whole / 3600)} h` : `${Math.floor(whole / 86400)} d`;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });

const words = (name) => name.replaceAll("_", " ");

// Text from others may contain characters that are invisible or reverse the direction of the line.
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\u00b7");

const texts = new WeakMap(); // what each element shows; reading it back from the DOM is slower

function put(element, text) {
  if (texts.get(element) === text) return;
  element.textContent = text;
  texts.set(element, text);
}

// For text that may not fit: a tooltip shows all of it.
function explain(element, text) {
  if (texts.get(element) !== text) element.title = text;
  put(element, text);
}

function paint(element, names) {
  if (element.className !== names) element.className = names;
}

function fill(meter, share) {
  const width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
  if (meter.style.width !== width) meter.style.width = width;
}

function make(tag, names, ...children) {
  const element = document.createElement(tag);
  element.className = names;
  element.append(...children);
  return element;
}

const find = (id) => document.getElementById(id);
