// Which columns of a table hold numbers and which hold words, for all tables alike; custom.css does
// the rest. A column of numbers has no three letters in a row in any entry ("12 min" is a number).
(function () {
  const SHORT = 24, LONG = 45; // characters: up to here on one line, from here on in several
  function read(table) {
    const rows = Array.from(table.tBodies).flatMap((body) => Array.from(body.rows));
    const heads = table.tHead ? Array.from(table.tHead.rows) : [];
    // Counted from the right, since a name that spans several rows stands in the first of them.
    const at = (row, place) => row.cells[row.cells.length - place];
    const width = Math.max(0, ...rows.map((row) => row.cells.length));
    for (let place = 1; place <= width; place++) {
      const cells = rows.map((row) => at(row, place)).filter(Boolean);
      const texts = cells.map((cell) => cell.textContent.trim());
      const words = texts.some((text) => /\p{L}{3}/u.test(text)) || !texts.some((text) => text);
      cells.forEach((cell, k) => {
        if (cell.tagName === "TD") cell.classList.add(words ? "words" : "number");
        if (texts[k].length <= SHORT) cell.classList.add("short");
        if (texts[k].length > LONG) cell.classList.add("long");
      });
      heads
        .filter((row) => Array.from(row.cells).every((cell) => cell.colSpan === 1))
        .map((row) => at(row, place))
        .forEach((cell) => cell?.classList.add(words ? "words" : "number"));
    }
  }
  function readAll() {
    document.querySelectorAll(".bd-article table:not(.highlighttable)").forEach(read);
  }
  if (document.readyState !== "loading") readAll();
  else document.addEventListener("DOMContentLoaded", readAll);
})();
