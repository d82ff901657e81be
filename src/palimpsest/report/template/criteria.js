"use strict";
(() => {
  // Tables sort by the column whose heading is clicked; a second click turns the order.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({ row, place }));
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sign = down ? -1 : 1;
        const value = ({ row }) => row.cells[column].dataset.v;
        const text = ({ row }) => row.cells[column].textContent.trim();
        const numeric = rows.some((one) => value(one) !== undefined);
        rows.sort((a, b) => {
          if (!numeric) return sign * text(a).localeCompare(text(b), "en") || a.place - b.place;
          const [x, y] = [parseFloat(value(a)), parseFloat(value(b))];
          if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || a.place - b.place;
          return sign * (x - y) || a.place - b.place;
        });
        body.append(...rows.map(({ row }) => row));
      });
    });
  }
})();
