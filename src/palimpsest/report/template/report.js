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

  // Figures: the legend hides and shows what it names; the mark under the pointer stands out.
  for (const svg of document.querySelectorAll("svg.drawn")) {
    const keys = [...svg.querySelectorAll(".key")];
    const marks = [...svg.querySelectorAll("[data-group]:not(.key)")];
    const hidden = new Set();
    for (const key of keys) {
      key.addEventListener("click", () => {
        const group = key.dataset.group;
        if (!hidden.delete(group)) hidden.add(group);
        for (const one of keys) one.classList.toggle("off", hidden.has(one.dataset.group));
        for (const mark of marks) mark.classList.toggle("gone", hidden.has(mark.dataset.group));
      });
    }
    const same = (mark, at) =>
      at.dataset.model ? mark.dataset.model === at.dataset.model : mark.dataset.group === at.dataset.group;
    svg.addEventListener("pointerover", (event) => {
      const at = event.target.closest("[data-group]");
      for (const mark of marks) mark.classList.toggle("dim", at !== null && !same(mark, at));
    });
    svg.addEventListener("pointerleave", () => {
      for (const mark of marks) mark.classList.remove("dim");
    });
  }

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
  // Accepted candidates (0) survive the screen (1) too.
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
