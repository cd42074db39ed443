// SPDX-License-Identifier: Apache-2.0
"use strict";
const charts = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");

function svgElement(name, attributes) {
  const element = document.createElementNS("http" + "://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function written(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 1 : size >= 1 ? 3 : 4 });
}

function nearest(values, wanted) {
  let best = 0;
  for (let i = 1; i < values.length; i++) {
    if (Math.abs(values[i] - wanted) < Math.abs(values[best] - wanted)) best = i;
  }
  return best;
}

function line(text, value, dim) {
  const row = document.createElement("div");
  const number = document.createElement("b");
  number.textContent = value;
  row.append(text ? text + " " : "", number);
  if (dim) row.className = "dim";
  return row;
}

function attach(holder, data) {
  const svg = holder.querySelector("svg"), { w, h, x, y, m } = data.frame;
  const [left, right, top, bottom] = m;
  const marks = svgElement("g", { visibility: "hidden" });
  svg.append(marks);
  const atX = (v) => left + (x[1] > x[0] ? (v - x[0]) / (x[1] - x[0]) : 0.5) * (w - left - right);
  const atY = (v) => h - bottom - ((v - y[0]) / (y[1] - y[0])) * (h - top - bottom);

  function show(event) {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * w;
    const wanted = x[0] + ((at - left) / (w - left - right)) * (x[1] - x[0]);
    const longest = data.series.reduce((a, b) => (b.x.length > a.x.length ? b : a));
    if (!longest.x.length) return;
    const iteration = longest.x[nearest(longest.x, wanted)];
    marks.replaceChildren(svgElement("line", { class: "cross", x1: atX(iteration), x2: atX(iteration), y1: top, y2: h - bottom }));
    tip.replaceChildren(line("iteration", written(Math.round(iteration)), true));
    data.series.forEach((series, number) => {
      const i = nearest(series.x, iteration), value = series.y[i];
      const spread = series.low ? ` (${written(series.low[i])} to ${written(series.high[i])})` : "";
      const when = series.x[i] !== iteration ? ` at ${written(Math.round(series.x[i]))}` : "";
      if (data.stacked && !value) return;
      tip.append(line(series.label + when, written(value) + spread + (data.stacked ? " s" : "")));
      if (value !== null && !data.stacked) {
        marks.append(svgElement("circle", { class: "spot s" + number, cx: atX(series.x[i]), cy: atY(value), r: 3.6 }));
      }
    });
    marks.setAttribute("visibility", "visible");
    tip.hidden = false;
    const room = tip.getBoundingClientRect();
    const before = event.clientX + 16 + room.width > innerWidth;
    tip.style.left = (before ? event.clientX - room.width - 16 : event.clientX + 16) + "px";
    tip.style.top = Math.max(8, Math.min(event.clientY + 14, innerHeight - room.height - 8)) + "px";
  }

  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => {
    marks.setAttribute("visibility", "hidden");
    tip.hidden = true;
  });
}

for (const holder of document.querySelectorAll("[data-chart]")) attach(holder, charts[Number(holder.dataset.chart)]);

const picker = document.getElementById("iteration");
if (picker) {
  const rows = [...document.querySelectorAll("[data-iteration]")];
  const words = document.getElementById("words"), count = document.getElementById("count");
  const earlier = document.getElementById("earlier"), later = document.getElementById("later");

  function filter() {
    const wanted = words.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = (!picker.value || row.dataset.iteration === picker.value) && row.textContent.toLowerCase().includes(wanted);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = shown + (shown === 1 ? " sample" : " samples");
    earlier.disabled = picker.selectedIndex <= 1;
    later.disabled = picker.selectedIndex === picker.options.length - 1;
  }

  function move(by) {
    picker.selectedIndex += by;
    filter();
  }

  picker.addEventListener("change", filter);
  words.addEventListener("input", filter);
  earlier.addEventListener("click", () => move(-1));
  later.addEventListener("click", () => move(1));
  picker.selectedIndex = picker.options.length - 1;
  picker.closest(".bar").hidden = false;
  filter();
}
