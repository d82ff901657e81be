"use strict";
(() => {
  // The choice of a candidate: its marks, numbers and answers are shown, those of the others hidden.
  const choice = document.getElementById("choice");
  if (choice) {
    const chosen = document.getElementById("chosen");
    const show = () => {
      for (const one of document.querySelectorAll("[data-c]")) {
        one.classList.toggle("off", one.dataset.c !== choice.value);
      }
    };
    choice.hidden = false;
    chosen.hidden = true;
    choice.addEventListener("change", show);
    for (const row of document.querySelectorAll(".lines [data-choice]")) {
      row.addEventListener("click", () => {
        choice.value = row.dataset.choice;
        show();
      });
    }
  }
  // Tables sort by the column whose heading is clicked; a second click turns the order.
  const number = (text) => parseFloat(text.replace("−", "-"));
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.tabIndex = 0;
      const sort = () => {
        const sign = head.ariaSort === "ascending" ? -1 : 1;
        for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
        head.ariaSort = sign > 0 ? "ascending" : "descending";
        const text = (row) => row.cells[column].textContent;
        const order = (a, b) => {
          const [x, y] = [number(text(a)), number(text(b))];
          if (isNaN(x) && isNaN(y)) return sign * text(a).localeCompare(text(b), "en");
          return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
        };
        body.append(...[...body.rows].sort(order));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }
})();
