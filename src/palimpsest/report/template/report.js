"use strict";
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  // Theme: the system's, unless the reader chose.
  const theme = byId("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => {
    theme.textContent = isDark() ? "Light page" : "Dark page";
    theme.setAttribute("aria-pressed", String(isDark()));
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();

  // Points: the nearest one is named when pointed at, or reached with the arrow keys.
  const tip = byId("tip");
  let current = null;
  const hide = () => {
    if (current) current.classList.remove("on");
    current = null;
    tip.hidden = true;
  };
  const show = (point) => {
    if (current === point) return;
    hide();
    current = point;
    point.classList.add("on");
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    const at = point.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const x = at.left + at.width / 2 - size.width / 2;
    const above = at.top - size.height - 8;
    tip.style.left = Math.max(8, Math.min(x, innerWidth - size.width - 8)) + "px";
    tip.style.top = (above > 8 ? above : at.bottom + 8) + "px";
  };
  for (const panel of document.querySelectorAll("svg.panel")) {
    const points = [...panel.querySelectorAll("use")];
    if (!points.length) continue;
    for (const point of points) {
      const title = point.querySelector("title");
      point.setAttribute("role", "img");
      point.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    const places = points.map((p) => [+p.getAttribute("x"), +p.getAttribute("y")]);
    const order = places
      .map((_, k) => k)
      .sort((a, b) => Math.round(places[a][1] / 8) - Math.round(places[b][1] / 8) || places[a][0] - places[b][0]);
    let at = -1;
    panel.addEventListener("pointermove", (event) => {
      const box = panel.getBoundingClientRect();
      const scale = panel.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale;
      const y = (event.clientY - box.top) * scale;
      let best = 18 * 18;
      let found = -1;
      places.forEach(([px, py], k) => {
        const distance = (px - x) ** 2 + (py - y) ** 2;
        if (distance <= best) [best, found] = [distance, k];
      });
      if (found < 0) hide();
      else show(points[found]);
    });
    panel.addEventListener("pointerleave", hide);
    panel.addEventListener("blur", hide);
    panel.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.key === "Escape") return hide();
      if (event.key === "Home") at = 0;
      else if (event.key === "End") at = order.length - 1;
      else if (event.key in steps) at = Math.max(0, Math.min(order.length - 1, at + steps[event.key]));
      else return;
      event.preventDefault();
      show(points[order[at]]);
    });
  }
  addEventListener("scroll", hide, { passive: true });

  // The candidate table: sort by any column, filter by text and method.
  const table = byId("candidate-table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => ({
    row,
    place,
    text: row.textContent.toLowerCase(),
    cells: [...row.cells].map((cell) => cell.dataset.v ?? cell.textContent.trim()),
  }));
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const numeric = rows.some(({ row }) => row.cells[column].classList.contains("n"));
      const compare = (a, b) => {
        const [x, y] = [a.cells[column], b.cells[column]];
        if (!numeric) return sign * x.localeCompare(y, "en", { numeric: true }) || a.place - b.place;
        const [u, v] = [parseFloat(x), parseFloat(y)];
        if (isNaN(u) || isNaN(v)) return isNaN(u) - isNaN(v) || a.place - b.place;
        return sign * (u - v) || a.place - b.place;
      };
      rows.sort(compare);
      body.append(...rows.map(({ row }) => row));
    });
  });
  const find = byId("find");
  const method = byId("method");
  const outcome = byId("outcome");
  const count = byId("count");
  // Whoever clears the bar (0) survives the screen (1) too.
  const outcomes = (value) => (value === "1" ? ["0", "1"] : [value]);
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text } of rows) {
      const keep =
        (!method.value || row.dataset.method === method.value) &&
        (!outcome.value || outcomes(outcome.value).includes(row.dataset.outcome)) &&
        words.every((word) => text.includes(word));
      row.hidden = !keep;
      shown += keep;
    }
    count.textContent = shown + " of " + rows.length;
  };
  find.addEventListener("input", filter);
  method.addEventListener("change", filter);
  outcome.addEventListener("change", filter);
  document.querySelector(".filters").hidden = false;
  filter();
})();
