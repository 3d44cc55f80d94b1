"use strict";
// What paper cannot have: values where one points, a legend that hides its series, files to save.
// Each figure brings its numbers in data-drawn; see Drawing.data in html.py.

const UNITS = {
  bytes: [[1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " KB"], [1, " B"]],
  s: [[1, " s"], [1e-3, " ms"], [1e-6, " µs"], [1e-9, " ns"]],
  "": [[1e9, "G"], [1e6, "M"], [1e3, "K"], [0, ""]],
};
const NEAR = 40; // Units of the drawing: what is farther from the pointer is not meant.

// A number as the axes write it: see numbers.short, but for a digit more.
function short(value, unit) {
  if (typeof value !== "number" || value === 0) return String(value);
  const steps = UNITS[unit], size = Math.abs(value);
  const [factor, name] = steps.find(([least]) => size >= least * 0.9999) ?? steps.at(-1);
  return Number((value / (factor || 1)).toPrecision(4)) + name;
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csv(data) {
  const cell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const rows = [["panel", "series", data.x, data.y, "lowest", "highest", "runs"]];
  for (const [series, panel, points] of data.marks)
    for (const [, , x, y, low, high, runs] of points) rows.push([panel, series, x, y, low, high, runs]);
  return (data.table ?? rows).map((row) => row.map((value) => cell(String(value ?? ""))).join(",") + "\n").join("");
}

// A drawing by itself: in the colours that it has now, and with the page's fonts.
function standalone(svg) {
  const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.querySelector(".ring")?.remove();
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const colours = getComputedStyle(document.documentElement);
  return new XMLSerializer().serializeToString(copy)
    .replace(/var\((--\w+)\)/g, (_, name) => colours.getPropertyValue(name).trim())
    .replace(">", "><style>text{font-family:'DejaVu Sans',Verdana,sans-serif}*{stroke-linejoin:round}</style>");
}

function addButtons(figure, svg, data) {
  const tools = document.createElement("p");
  tools.className = "tools";
  const files = [
    ["CSV", "text/csv", () => csv(data)],
    ["SVG", "image/svg+xml", () => standalone(svg)],
  ];
  for (const [kind, type, make] of files) {
    const button = document.createElement("button");
    button.textContent = kind;
    button.title = `Save this figure as ${kind}`;
    button.onclick = () => save(`${figure.id}.${kind.toLowerCase()}`, type, make());
    tools.append(button);
  }
  figure.querySelector(".drawn").after(tools);
}

function addToggles(svg, hidden) {
  for (const entry of svg.querySelectorAll("[data-legend]")) {
    const label = entry.dataset.legend;
    const mine = [...svg.querySelectorAll("[data-series]")].filter((e) => e.dataset.series === label);
    if (!mine.length) continue;
    const toggle = () => {
      const shown = !hidden.delete(label);
      if (shown) hidden.add(label);
      for (const each of mine) each.style.display = shown ? "none" : "";
      entry.setAttribute("aria-pressed", String(!shown));
    };
    entry.setAttribute("role", "button");
    entry.setAttribute("tabindex", "0");
    entry.setAttribute("aria-pressed", "true");
    entry.onclick = toggle;
    entry.onkeydown = (event) => {
      if (event.key === "Enter" || event.key === " ") event.preventDefault(), toggle();
    };
  }
}

const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "status");
tip.hidden = true;
document.body.append(tip);

function addValues(svg, data, hidden) {
  const all = data.marks.flatMap(([series, panel, points]) =>
    points.map(([px, py, x, y, low, high, runs]) => ({ series, panel, px, py, x, y, low, high, runs })));
  const ring = document.createElementNS(svg.namespaceURI, "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", "6");
  svg.append(ring);
  let at = -1;

  function show(point) {
    ring.style.display = point ? "block" : "none";
    tip.hidden = !point;
    if (!point) return;
    ring.setAttribute("cx", point.px);
    ring.setAttribute("cy", point.py);
    const y = (value) => short(value, data.yUnit), spread = point.low !== point.high;
    tip.textContent = [point.panel, `${point.series}: ${y(point.y)} at ${short(point.x, data.xUnit)}`,
      spread ? `${y(point.low)} to ${y(point.high)}` + (point.runs > 1 ? ` in ${point.runs} runs` : "") : "",
    ].filter(Boolean).join("\n");
    const place = new DOMPoint(point.px, point.py).matrixTransform(svg.getScreenCTM());
    const width = tip.offsetWidth, left = Math.min(place.x + 12, innerWidth - width - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, place.y - tip.offsetHeight - 12)}px`;
  }

  svg.addEventListener("pointermove", (event) => {
    const here = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let nearest = null, least = NEAR;
    for (const point of all) {
      const distance = Math.hypot(point.px - here.x, point.py - here.y);
      if (distance < least && !hidden.has(point.series)) (nearest = point), (least = distance);
    }
    show(nearest);
  });
  svg.addEventListener("pointerleave", () => show(null));
  svg.addEventListener("blur", () => show(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const shown = all.filter((point) => !hidden.has(point.series));
    if (event.key === "Escape") show(null);
    if (!step || event.target !== svg || !shown.length) return;
    event.preventDefault();
    at = (at + step + shown.length) % shown.length;
    show(shown[at]);
  });
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("role", "group");
}

for (const figure of document.querySelectorAll(".figure[data-drawn]")) {
  const data = JSON.parse(figure.dataset.drawn), svg = figure.querySelector("svg"), hidden = new Set();
  addButtons(figure, svg, data);
  if (data.marks.length) addToggles(svg, hidden), addValues(svg, data, hidden);
}

// On paper nothing is folded away.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => folded.forEach((each) => (each.open = false)));

// A link may lead into what is folded.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const closed = target?.closest("details:not([open])");
  if (closed) (closed.open = true), target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
