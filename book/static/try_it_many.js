// Up to fifty sentences: every cosine between them, raw and calibrated, and the nearest of one.
(function () {
  "use strict";

  const { SPACES, element, decimals } = window.bertflowTryIt;
  const MOST = 50;
  const NEAREST = 5;
  const WRITTEN = 10; // up to so many sentences the numbers stand in the cells
  const START = [
    "A man is playing a guitar on the street.",
    "A musician performs outside with his instrument.",
    "A man is eating a sandwich on the street.",
    "Someone has lunch on the pavement.",
    "The central bank raised interest rates by half a point.",
    "Borrowing became more expensive after yesterday's decision.",
    "The central bank opened a museum about money.",
    "How do I remove red wine from a carpet?",
    "What takes stains out of a rug?",
  ];
  // A cosine's color: white at 0, blue up to 1, brown down to -1; the same in the light and the dark.
  const ENDS = { low: [140, 81, 10], middle: [247, 247, 247], high: [8, 48, 107] };

  function color(cosine) {
    const part = Math.min(Math.abs(cosine), 1);
    const end = cosine < 0 ? ENDS.low : ENDS.high;
    const rgb = ENDS.middle.map((value, i) => Math.round(value + part * (end[i] - value)));
    return { back: `rgb(${rgb.join(" ")})`, front: part > 0.65 ? "#fff" : "#000" };
  }

  // The sentences of a text, one a line: {sentences, remarks}.
  function split(text, read) {
    const lines = text
      .split(/\r\n|[\n\r\u2028\u2029]/)
      .map((line) => line.trim())
      .filter((line) => line !== "");
    const readable = lines.filter((line) => !read(line).empty);
    const remarks = [];
    if (readable.length < lines.length) {
      const left = lines.length - readable.length;
      remarks.push(`${left} line${left > 1 ? "s have" : " has"} nothing to read in it.`);
    }
    if (readable.length > MOST) {
      remarks.push(`There are ${readable.length} sentences; the first ${MOST} are compared.`);
    }
    return { sentences: readable.slice(0, MOST), remarks };
  }

  function matrixTable(cosines, name) {
    const n = cosines.length;
    const heads = Array.from({ length: n }, (_, k) =>
      element("th", { attributes: { scope: "col" } }, String(k + 1)),
    );
    const rows = cosines.map(function (row, k) {
      const cells = row.map(function (cosine, j) {
        const { back, front } = color(cosine);
        const text = decimals(cosine);
        return element(
          "td",
          {
            title: `${k + 1} and ${j + 1}: ${text}`,
            attributes: { style: `background: ${back}; color: ${front}` },
          },
          n <= WRITTEN ? text : element("span", { className: "try-it-hidden" }, text),
        );
      });
      return element(
        "tr",
        {},
        element("th", { attributes: { scope: "row" } }, `${k + 1}`),
        ...cells,
      );
    });
    const whole = element(
      "table",
      { className: "try-it-matrix" },
      element("thead", {}, element("tr", {}, element("td"), ...heads)),
      element("tbody", {}, ...rows),
    );
    const label = `Cosines, ${name}`;
    return element(
      "figure",
      { className: "try-it-figure" },
      element("figcaption", {}, label),
      element(
        "div",
        {
          className: "try-it-scroll",
          tabIndex: 0,
          attributes: { role: "region", "aria-label": label },
        },
        whole,
      ),
    );
  }

  // The nearest sentences of one, best first, each with its cosine.
  function nearest(row, k) {
    return row
      .map((cosine, j) => ({ cosine, j }))
      .filter(({ j }) => j !== k)
      .sort((a, b) => b.cosine - a.cosine)
      .slice(0, NEAREST);
  }

  function nearestTable(sentences, k, raw, calibrated, name) {
    const [before, after] = [nearest(raw[k], k), nearest(calibrated[k], k)];
    const cell = ({ cosine, j }) =>
      element("td", {}, element("bdi", {}, sentences[j]), ` (${decimals(cosine)})`);
    const rows = before.map((found, place) =>
      element("tr", {}, element("td", {}, `${place + 1}`), cell(found), cell(after[place])),
    );
    const heads = ["", "raw", name].map((text) =>
      text ? element("th", { attributes: { scope: "col" } }, text) : element("td"),
    );
    return element(
      "table",
      { className: "try-it-nearest" },
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...rows),
    );
  }

  function choice(id, label, options) {
    const select = element("select", { id }, ...options);
    return [element("label", { htmlFor: id }, label), select];
  }

  // Fill `place` with the box, its button, and what they lead to.
  function showMany(place, { read, cosine }) {
    const area = element("textarea", {
      id: "bertflow-sentences",
      rows: 10,
      dir: "auto",
      spellcheck: false,
      autocomplete: "off",
      value: START.join("\n"),
    });
    const label = element(
      "label",
      { htmlFor: area.id },
      `Your sentences, one a line, ${MOST} at most`,
    );
    const press = element("button", { type: "button", id: "bertflow-compare" }, "Compare them");
    const said = element("p", {
      className: "try-it-said",
      attributes: { role: "status", "aria-live": "polite" },
    });
    const results = element("div");

    function show(sentences) {
      const vectors = sentences.map((text) => read(text).vectors);
      const matrix = (space) =>
        vectors.map((one) => vectors.map((two) => cosine(one[space], two[space])));
      const raw = matrix("raw");
      const [spaceLabel, space] = choice(
        "bertflow-space",
        "Calibrated by",
        Object.entries(SPACES)
          .filter(([name]) => name !== "raw")
          .map(([value, text]) => element("option", { value, selected: value === "flow" }, text)),
      );
      const [oneLabel, one] = choice(
        "bertflow-neighbor",
        "Nearest to",
        sentences.map((text, k) => element("option", { value: `${k}` }, `${k + 1}. ${text}`)),
      );
      const matrices = element("div", { className: "try-it-matrices" });
      const neighbors = element("div", { attributes: { "aria-live": "polite" } });
      let calibrated = raw;

      function drawNeighbors() {
        const name = SPACES[space.value];
        neighbors.replaceChildren(
          nearestTable(sentences, Number(one.value), raw, calibrated, name),
        );
      }
      function draw() {
        calibrated = matrix(space.value);
        matrices.replaceChildren(
          matrixTable(raw, "raw"),
          matrixTable(calibrated, SPACES[space.value]),
        );
        drawNeighbors();
      }
      space.addEventListener("change", draw);
      one.addEventListener("change", drawNeighbors);
      results.replaceChildren(spaceLabel, space, matrices, oneLabel, one, neighbors);
      draw();
    }

    // Not disabled meanwhile: a button that is loses the focus.
    let busy = false;
    async function compareAll() {
      if (busy) return;
      busy = true;
      const { sentences, remarks } = split(area.value, (line) => read(line));
      for (const [k, text] of sentences.entries()) {
        said.textContent = `Reading sentence ${k + 1} of ${sentences.length} …`;
        read(text);
        await new Promise((resolve) => setTimeout(resolve)); // lets the page answer in between
      }
      if (sentences.length < 2) {
        results.replaceChildren();
        said.textContent = ["Two sentences or more can be compared.", ...remarks].join(" ");
      } else {
        show(sentences);
        said.textContent = [`${sentences.length} sentences were compared.`, ...remarks].join(" ");
      }
      busy = false;
    }

    press.addEventListener("click", compareAll);
    place.replaceChildren(label, area, press, said, results);
  }

  window.bertflowTryIt.showMany = showMany;
})();
