// What the theme and docutils leave undone for people who use a keyboard or a screen reader.
// A table or formula that scrolls in its own box can be reached by keyboard, too.
(function () {
  function mark() {
    document
      .querySelectorAll(".bd-article table, .bd-article div.math, .bd-article mjx-container")
      .forEach(function (box) {
        if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
        else box.removeAttribute("tabindex");
      });
  }
  // The list of works: its entries carry a role that ARIA has given up, and so are no list items.
  function list() {
    document.querySelectorAll('[role="doc-biblioentry"]').forEach(function (entry) {
      entry.setAttribute("role", "listitem");
    });
  }
  window.addEventListener("load", list);
  window.addEventListener("load", mark);
  document.addEventListener("load", function (event) { // formulas are set after their library came
    if (/mathjax/.test(event.target.src)) window.MathJax.startup.promise.then(mark);
  }, true);
  window.addEventListener("resize", mark);
})();
