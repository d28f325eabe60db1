"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function make(name, values = {}, ...children) {
  const own = ["svg", "path", "line", "text", "circle"].includes(name);
  const made = own ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Six digits, as the tables have.
const shown = (value) => (value === null || value === undefined ? "none" : `${+value.toPrecision(6)}`);

function fill(select, named) {
  select.replaceChildren(...Object.entries(named).map(
    ([value, label]) => make("option", { value }, label)));
}

// Round numbers from one end to the other.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((one) => one * size >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    found.push(+(k * step).toPrecision(12));
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential().replace("e+", "e");
  return `${value}`;
}

(function curves() {
  const { axes, columns, lines } = DATA.curves, svg = $("curves"), EDGE = 14, MANY = 10;
  const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2",
    "#7f7f7f", "#bcbd22", "#17becf"];
  const DASHES = ["", "9 4", "9 4 3 4", "3 5"];
  const groups = [...new Set(lines.map((one) => one.group))];
  let at = null;  // where values are read, on the horizontal axis; null: at the end
  let lit = null;  // the line whose name is pointed at
  let stops = [], place = null;  // the horizontal values, and that of a pixel
  lines.forEach((one, k) => {
    one.on = lines.length <= MANY || one.group === groups[0];
    // As in the figures: each is thinner than those below it, and no two of forty are alike.
    one.look = { stroke: COLOURS[k % 10], "stroke-dasharray": DASHES[(k + Math.floor(k / 20)) % 4],
      "stroke-width": 3.6 - Math.min(0.5, 1.8 / Math.max(lines.length - 1, 1)) * k, fill: "none" };
  });
  fill($("column"), columns);
  fill($("axis"), axes);

  const points = (one) => one.x[$("axis").value], part = (one) => one.y[$("column").value];
  const drawn = (one) => one.on && points(one) && part(one);

  function nearest(xs, x) {
    let best = 0;
    xs.forEach((value, k) => { if (Math.abs(value - x) < Math.abs(xs[best] - x)) best = k; });
    return best;
  }

  // A path of the stretches without a gap.
  function path(xs, ys, X, Y) {
    let text = "", pen = "M";
    xs.forEach((x, k) => {
      if (ys[k] === null) pen = "M";
      else { text += `${pen}${X(x).toFixed(1)} ${Y(ys[k]).toFixed(1)}`; pen = "L"; }
    });
    return text;
  }

  function band(xs, [, low, high], X, Y) {
    let text = "", run = [];
    const close = () => {
      const there = run.map((k) => `${X(xs[k])} ${Y(high[k])}`);
      const back = run.reverse().map((k) => `${X(xs[k])} ${Y(low[k])}`);
      if (there.length) text += `M${[...there, ...back].join("L")}Z`;
      run = [];
    };
    xs.forEach((_, k) => (low[k] === null ? close() : run.push(k)));
    close();
    return text;
  }

  // A dot for a number between two gaps, a cross at the last one of a run that diverged.
  function marks(one, xs, ys, X, Y) {
    const known = ys.map((y) => y !== null), found = [];
    known.forEach((is, k) => {
      if (is && !known[k - 1] && !known[k + 1])
        found.push(make("circle", { cx: X(xs[k]), cy: Y(ys[k]), r: 3, fill: one.look.stroke }));
    });
    const last = known.lastIndexOf(true);
    if (one.diverged !== null && last >= 0) {
      const [x, y] = [X(xs[last]), Y(ys[last])];
      found.push(make("path", { d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10`,
        stroke: one.look.stroke, "stroke-width": 2.5 }));
    }
    return found;
  }

  function draw() {
    const width = Math.max(svg.parentElement.clientWidth, 200);
    const height = Math.min(Math.max(width * 0.5, 260), 460), shownOnes = lines.filter(drawn);
    const xs = shownOnes.flatMap(points);
    const ys = shownOnes.flatMap((one) => part(one).flat()).filter((y) => y !== null);
    const ends = (own) => own.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)],
      [Infinity, -Infinity]);
    let [[left, right], [low, high]] = [ends(xs), ends(ys)];
    if (!xs.length) [left, right] = [0, 1];
    if (!ys.length) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    const yTicks = ticks(low, high, 6), labels = yTicks.map(short);
    const margin = 18 + 7.2 * Math.max(4, ...labels.map((one) => one.length));
    const X = (x) => margin + ((x - left) / (right - left || 1)) * (width - margin - EDGE);
    const Y = (y) => height - 40 - ((y - low) / (high - low)) * (height - 54);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-label",
      `${columns[$("column").value]} over ${axes[$("axis").value]}, ${shownOnes.length} lines`);
    svg.replaceChildren(
      ...yTicks.flatMap((y, k) => [
        make("line", { class: "grid", x1: margin, x2: width - EDGE, y1: Y(y), y2: Y(y) }),
        make("text", { x: margin - 6, y: Y(y) + 4, "text-anchor": "end" }, labels[k])]),
      ...ticks(left, right, width / 90).map((x) =>
        make("text", { x: X(x), y: height - 22, "text-anchor": "middle" }, short(x))),
      make("text", { x: (margin + width) / 2, y: height - 5, "text-anchor": "middle" },
        axes[$("axis").value]),
      ...(lit ? [lit] : shownOnes.length > MANY ? [] : shownOnes)
        .filter((one) => drawn(one) && part(one).length > 1)
        .map((one) => make("path",
          { d: band(points(one), part(one), X, Y), fill: one.look.stroke, opacity: 0.18 })),
      ...shownOnes.map((one) => make("path",
        { ...one.look, d: path(points(one), part(one)[0], X, Y), "data-line": one.label,
          opacity: lit && lit !== one ? 0.2 : 1 })),
      ...shownOnes.flatMap((one) => marks(one, points(one), part(one)[0], X, Y)));
    const x = at ?? right;
    if (at !== null && at >= left && at <= right)
      svg.append(make("line", { class: "cursor", x1: X(at), x2: X(at), y1: 14, y2: height - 40 }));
    place = (pixel) => left + ((pixel - margin) / (width - margin - EDGE)) * (right - left);
    stops = [...new Set(xs)].sort((a, b) => a - b);
    read(x);
  }

  // Beside each name its value at x, and where that is if it is elsewhere.
  function read(x) {
    $("place").textContent = `at ${axes[$("axis").value]} ${shown(x)}`;
    lines.forEach((one) => {
      let text = points(one) && part(one) ? "" : "has none";
      if (drawn(one)) {
        const k = nearest(points(one), x), [mean, low, high] = part(one), own = points(one)[k];
        text = shown(mean[k]);
        if (low && mean[k] !== null) text += ` (${shown(low[k])} to ${shown(high[k])})`;
        if (own !== x) text += ` at ${shown(own)}`;
        if (one.diverged !== null) text += `, diverged at round ${one.diverged}`;
      }
      one.button.querySelector(".value").textContent = text;
      one.button.setAttribute("aria-pressed", one.on);
    });
  }

  function entry(one) {
    const swatch = make("svg", { viewBox: "0 0 38 10", width: 38, height: 10, "aria-hidden": true },
      make("path", { ...one.look, d: "M0 5H38" }));
    const seeds = one.seeds > 1 ? `${one.label} (${one.seeds} seeds)` : one.label;
    one.button = make("button", { class: "entry", type: "button" }, swatch,
      make("span", { class: "name" }, seeds), make("span", { class: "value" }));
    const light = (on) => { lit = on && one.on ? one : null; draw(); };
    one.button.addEventListener("click", () => { one.on = !one.on; light(one.on); });
    one.button.addEventListener("pointerenter", () => light(true));
    one.button.addEventListener("pointerleave", () => light(false));
    one.button.addEventListener("focus", () => light(one.button.matches(":focus-visible")));
    one.button.addEventListener("blur", () => light(false));
    return one.button;
  }

  function allOrNone(group, own) {
    const button = make("button", { type: "button", "aria-label": `all or none of ${group}` },
      "all or none");
    button.addEventListener("click", () => {
      const on = !own.every((one) => one.on);
      own.forEach((one) => { one.on = on; });
      draw();
    });
    return button;
  }

  for (const group of groups) {
    const own = lines.filter((one) => one.group === group);
    const entries = make("div", { class: "entries" }, ...own.map(entry));
    const all = own.length > 1 ? [make("p", {}, allOrNone(group, own))] : [];
    const part = make("details", {}, make("summary", {}, group), ...all, entries);
    part.open = own.some((one) => one.on);
    $("legend").append(part);
  }

  function move(x) {
    const there = stops.length ? stops[nearest(stops, x)] : null;
    if (there === at) return;
    at = there;
    draw();
  }

  for (const kind of ["pointermove", "pointerdown"])
    svg.addEventListener(kind, (event) =>
      move(place(event.clientX - svg.getBoundingClientRect().left)));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !stops.length) return;
    event.preventDefault();
    const last = stops.length - 1, k = at === null ? last : nearest(stops, at);
    move(stops[Math.min(Math.max(k + by, 0), last)]);
    $("spoken").textContent = [$("place"), ...lines.filter(drawn).map((one) => one.button)]
      .map((one) => [...one.querySelectorAll("span")].map((own) => own.textContent).join(" ")
        || one.textContent).join("; ");
  });
  for (const id of ["column", "axis"])
    $(id).addEventListener("change", () => { at = id === "axis" ? null : at; draw(); });
  new ResizeObserver(draw).observe(svg.parentElement);
})();
