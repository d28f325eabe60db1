(function schedule() {
  const canvas = $("visits"), THICK = 12, LEFT = 52, RIGHT = 16, BELOW = 34;  // pixels
  // Darker to brighter, for eyes that see few colours, and all of it seen on white and on black.
  const SCALE = [[62, 100, 215], [200, 75, 125], [244, 145, 45]];
  let own = null, view = null, chosen = null;  // [first round, last, lowest client, highest]

  function colour(share) {
    const place = Math.sqrt(share) * 2, k = Math.min(Math.floor(place), 1);  // few are very stale
    const mixed = SCALE[k].map((low, c) => low + (place - k) * (SCALE[k + 1][c] - low));
    return `rgb(${mixed.map(Math.round).join()})`;
  }

  function rank(one) {
    const visits = new Array(one.clients).fill(0);
    one.client.forEach((client) => { visits[client]++; });
    const order = visits.map((_, k) => k).sort((a, b) => visits[a] - visits[b] || a - b);
    one.order = order;
    one.place = [];
    order.forEach((client, k) => { one.place[client] = k; });
  }

  function whole() { view = [0, Math.max(own.shown, 1), 0, own.clients]; }

  const size = () => [canvas.clientWidth, canvas.clientHeight];
  const area = () => { const [w, h] = size(); return [w - LEFT - RIGHT, h - BELOW - 4]; };
  const X = (round) => LEFT + ((round - view[0]) / (view[1] - view[0])) * area()[0];
  const Y = (place) => 4 + area()[1] * (1 - (place - view[2]) / (view[3] - view[2]));

  function draw() {
    if (!own || own.missing) return;
    const [width, height] = size(), ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    const values = own[$("colour").value], most = values.reduce((a, b) => Math.max(a, b), 1);
    const wide = Math.max(X(1) - X(0) - 0.5, 1.5), high = Math.max(Y(0) - Y(1) - 0.5, 1.5);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 4, ...area());
    pen.clip();
    values.forEach((value, k) => {
      if (own.round[k] < view[0] - 1 || own.round[k] > view[1]) return;
      pen.fillStyle = colour(value / most);
      pen.fillRect(X(own.round[k]), Y(own.place[own.client[k]] + 1), wide, high);
    });
    if (chosen !== null) {
      pen.strokeStyle = style.color;
      pen.lineWidth = 2;
      pen.strokeRect(X(own.round[chosen]) - 2, Y(own.place[own.client[chosen]] + 1) - 2, wide + 4, high + 4);
    }
    pen.restore();
    pen.fillStyle = style.color;
    pen.textAlign = "center";
    for (const round of ticks(view[0], view[1], width / 90))
      if (round % 1 === 0) pen.fillText(round, X(round), height - 19);
    pen.fillText("round", LEFT + area()[0] / 2, height - 4);
    pen.textAlign = "right";
    const step = Math.ceil((view[3] - view[2]) / Math.max(area()[1] / 14, 1));
    for (let k = Math.ceil(view[2]); k < view[3]; k += step)
      if (Y(k + 0.5) > 10) pen.fillText(own.order[k], LEFT - 6, Y(k + 0.5) + 4);
    told(most);
  }

  function told(most) {
    const [first, last, low, high] = view.map(Math.round);
    const cut = own.shown < own.rounds ? `, of ${own.rounds} rounds the first ${own.shown}` : "";
    canvas.setAttribute("aria-label", `visits in rounds ${first} to ${last - 1}, ${high - low} of `
      + `${own.clients} clients${cut}`);
    const stops = [0, 1, 2, 3, 4, 6, 8].map((k) => `${colour(k / 8)} ${12.5 * k}%`).join();
    const bar = make("span", { class: "bar", style: `background: linear-gradient(90deg, ${stops})` });
    const unit = $("colour").value === "work" ? ` ${own.unit}` : "";
    $("scale").replaceChildren("0", bar, `${most}${unit}${cut}`);
    if (chosen === null) {
      $("visit").textContent = `rounds ${first} to ${last - 1}, ${high - low} clients`;
      return;
    }
    const time = own.time === null ? "" : `, ${shown(own.time[own.round[chosen]])} s`;
    $("visit").textContent = `round ${own.round[chosen]}${time}: client ${own.client[chosen]}, `
      + `staleness ${own.staleness[chosen]}, work ${own.work[chosen]} ${own.unit}`;
  }

  // One end and its opposite about a middle, inside the whole; not fewer than so many.
  function span(low, high, middle, factor, all, least) {
    const length = Math.min(Math.max((high - low) * factor, Math.min(least, all)), all);
    const start = middle - ((middle - low) / (high - low)) * length;
    const moved = Math.min(Math.max(start, 0), all - length);
    return [moved, moved + length];
  }

  // Clients are magnified only until their rows can be told apart.
  function zoom(factor, x = LEFT + area()[0] / 2, y = 4 + area()[1] / 2) {
    if (!own || own.missing) return;
    const round = view[0] + ((x - LEFT) / area()[0]) * (view[1] - view[0]);
    const client = view[3] - ((y - 4) / area()[1]) * (view[3] - view[2]);
    view = [...span(view[0], view[1], round, factor, Math.max(own.shown, 1), 5),
      ...span(view[2], view[3], client, factor, own.clients, Math.max(area()[1] / THICK, 1))];
    draw();
  }

  function pan(rounds, clients) {
    view = [...span(view[0] + rounds, view[1] + rounds, view[0] + rounds, 1, Math.max(own.shown, 1), 1),
      ...span(view[2] + clients, view[3] + clients, view[2] + clients, 1, own.clients, 1)];
    draw();
  }

  function choose(k) {
    chosen = k;
    const [round, place] = [own.round[k], own.place[own.client[k]]];
    const away = (value, low, high) => (value < low ? value - low : Math.max(value + 1 - high, 0));
    pan(away(round, view[0], view[1]), away(place, view[2], view[3]));
  }

  function at(x, y) {
    const distance = (k) => Math.hypot(X(own.round[k] + 0.5) - x, Y(own.place[own.client[k]] + 0.5) - y);
    let best = null;
    own.round.forEach((_, k) => { if (best === null || distance(k) < distance(best)) best = k; });
    if (best !== null && distance(best) < Math.max(X(1) - X(0), Y(0) - Y(1), 16)) choose(best);
  }

  function show() {
    own = DATA.schedules[$("schedule").value];
    chosen = null;
    $("drawn").hidden = Boolean(own.missing);
    $("missing").textContent = own.missing ? `none to show: ${own.missing}` : "";
    for (const id of ["closer", "wider", "whole", "colour"]) $(id).disabled = Boolean(own.missing);
    if (own.missing) return;
    if (!own.place) rank(own);
    whole();
    draw();
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag = { x: event.offsetX, y: event.offsetY, moved: true };
    pan((-dx / area()[0]) * (view[1] - view[0]), (dy / area()[1]) * (view[3] - view[2]));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) at(event.offsetX, event.offsetY);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas) return;  // a page that is scrolled past it stays as it is
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const [wide, high] = [(view[1] - view[0]) / 8, (view[3] - view[2]) / 8];
    const next = (by) => choose(Math.min(Math.max((chosen ?? (by < 0 ? 1 : -1)) + by, 0), own.round.length - 1));
    const done = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      0: () => { whole(); draw(); }, n: () => next(1), p: () => next(-1),
      ArrowLeft: () => pan(-wide, 0), ArrowRight: () => pan(wide, 0),
      ArrowUp: () => pan(0, high), ArrowDown: () => pan(0, -high) }[event.key];
    if (!done || !own.round.length || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    done();
  });
  $("closer").addEventListener("click", () => zoom(0.5));
  $("wider").addEventListener("click", () => zoom(2));
  $("whole").addEventListener("click", () => { if (own && !own.missing) { whole(); draw(); } });
  $("colour").addEventListener("change", draw);
  $("schedule").addEventListener("change", show);
  fill($("schedule"), Object.fromEntries(DATA.schedules.map((one, k) => [k, one.name])));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  if (DATA.schedules.length) {
    show();
    new ResizeObserver(draw).observe(canvas.parentElement);
  }
})();
