// The button that loads the model, and what tests and the curious may call: window.bertflow.
(function () {
  "use strict";

  const tryIt = window.bertflowTryIt;
  const { element, makeComparer, showPair, showMany } = tryIt;
  // The data lie beside this script. It is added as scripts, since a page that was opened as a file
  // may fetch nothing.
  const folder = new URL(".", document.currentScript.src);

  let fulfill;
  const ready = new Promise((resolve) => (fulfill = resolve));
  window.bertflow = {
    ready,
    compare() {
      throw new Error("Press the button that loads the model, and wait for bertflow.ready.");
    },
  };

  function addScript(name) {
    return new Promise(function (resolve, reject) {
      const tag = element("script", { src: new URL(name, folder).href });
      tag.addEventListener("load", () => resolve(tag));
      tag.addEventListener("error", function () {
        tag.remove();
        reject(new Error(`${name} is missing or could not be read`));
      });
      document.head.append(tag);
    });
  }

  async function loadComparer() {
    const tags = await Promise.all(["try_it_model.js", "try_it_fitted.js"].map(addScript));
    const comparer = makeComparer(tryIt);
    // The numbers are held by the comparer now; their text takes 16 MB more.
    for (const tag of tags) tag.remove();
    delete tryIt.model;
    delete tryIt.fitted;
    return comparer;
  }

  function start() {
    const place = document.getElementById("bertflow-start");
    const [pair, many] = ["pair", "many"].map((name) =>
      document.getElementById(`bertflow-${name}`),
    );
    const size = place.dataset.megabytes;
    const button = element(
      "button",
      { type: "button", id: "bertflow-load" },
      `Load the model (${size} MB)`,
    );
    const said = element("p", {
      className: "try-it-said",
      attributes: { role: "status", "aria-live": "polite" },
    });
    for (const each of [pair, many]) {
      each.replaceChildren(element("p", {}, "The boxes stand here once the model is loaded."));
    }
    place.replaceChildren(button, said);

    button.addEventListener("click", async function () {
      button.disabled = true;
      said.textContent = "Loading the model …";
      try {
        const comparer = await loadComparer();
        const first = showPair(pair, comparer);
        showMany(many, comparer);
        const { tokenize, compare } = comparer;
        Object.assign(window.bertflow, { tokenize, compare });
        said.textContent = "The model is loaded. It stays in this page until you leave it.";
        button.remove();
        first.focus();
        fulfill();
      } catch (error) {
        said.textContent = `The model could not be loaded: ${error.message}.`;
        button.disabled = false;
        button.focus();
      }
    });
  }

  start();
})();
