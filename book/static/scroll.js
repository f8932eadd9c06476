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
  window.addEventListener("load", mark);
  window.addEventListener("resize", mark);
})();
