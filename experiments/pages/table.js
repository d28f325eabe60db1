(function table() {
  const head = [...$("results").tHead.rows[0].cells], body = $("results").tBodies[0];
  const number = (text) => (/^[-+]?[\d.]/.test(text) ? parseFloat(text) : NaN);

  // Numbers by their size, then words, then empty cells: these come last in both directions.
  function compare(a, b, sign) {
    if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);
    const [x, y] = [number(a), number(b)];
    if (isNaN(x) || isNaN(y))
      return isNaN(x) === isNaN(y) ? sign * a.localeCompare(b) : isNaN(x) - isNaN(y);
    return sign * (x - y);
  }

  head.forEach((cell, k) => {
    const button = make("button", { type: "button" }, cell.textContent);
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = cell.getAttribute("aria-sort") !== "ascending", text = (row) => row.cells[k].textContent;
      head.forEach((one) => one.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => compare(text(a), text(b), up ? 1 : -1)));
    });
  });
})();
