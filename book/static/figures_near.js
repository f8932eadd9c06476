// Figures are drawn when they come near the view, in order, so that a page opens at once.
//
// Each figure of a page calls Plotly.newPlot(box, figure) as soon as there is a Plotly
// (bertflow_lite/plots.py). This script stands before them and takes Plotly's place: it keeps what
// it is given until the library is there and the figure is near. Boxes have their height from the
// start, so nothing jumps. Before printing, all that is left is drawn.
(function () {
  "use strict";
  const MARGIN = "100% 0px"; // near: at most one height of the window away
  const waiting = []; // {box, figure, near}, in the page's order
  let library = null;
  let everything = false; // somebody has asked for all figures
  let busy = false;
  let answer;
  const loaded = new Promise(function (resolve) { answer = resolve; });

  function keep(box, figure) {
    // The first one is what a reader meets first: it does not wait to be near.
    const first = document.querySelector(".plotly-graph-div") === box;
    waiting.push({ box: box, figure: figure, near: first || everything });
    return loaded;
  }

  function draw(item) {
    waiting.splice(waiting.indexOf(item), 1);
    return library.newPlot(item.box, item.figure);
  }

  // One figure at a time: between two of them the page can scroll and answer.
  function drawNext() {
    const item = waiting.find(function (each) { return each.near; });
    busy = Boolean(item);
    if (!item) return;
    draw(item);
    setTimeout(drawNext);
  }

  function watch() {
    const near = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (!entry.isIntersecting) return;
        near.unobserve(entry.target);
        const item = waiting.find(function (each) { return each.box === entry.target; });
        if (item) item.near = true;
      });
      if (!busy) drawNext();
    }, { rootMargin: MARGIN });
    waiting.forEach(function (item) { near.observe(item.box); });
  }

  function drawAll() {
    everything = true;
    if (!library) return loaded.then(function (found) { return found ? drawAll() : undefined; });
    return Promise.all(waiting.slice().map(draw));
  }

  // Menus, icons and formulas take a while: their libraries come once the first figure can be seen.
  const later = document.currentScript.getAttribute("data-later").split(" ").filter(Boolean);
  function bringTheRest() {
    later.splice(0).forEach(function (address) {
      const script = document.createElement("script");
      script.src = address;
      script.async = false; // in their order
      document.head.appendChild(script);
    });
  }

  // The library's own tag says when it has come, or that it will not.
  function isLibrary(event) { return event.target.id === "plotly-library"; }
  document.addEventListener("load", function (event) {
    if (!isLibrary(event)) return;
    library = window.Plotly;
    answer(true);
    const first = waiting.find(function (item) { return item.near; });
    if (first) draw(first);
    setTimeout(bringTheRest);
    setTimeout(watch);
  }, true);
  document.addEventListener("error", function (event) {
    if (!isLibrary(event)) return;
    waiting.splice(0).forEach(function (item) {
      item.box.textContent = item.box.parentNode.getAttribute("aria-label");
    });
    answer(false);
    bringTheRest();
  }, true);
  window.addEventListener("beforeprint", drawAll);

  window.Plotly = { newPlot: keep };
  window.bertflowFigures = {
    drawAll: drawAll,
    waiting: function () { return waiting.length; },
  };
})();
