// Two sentences: what is shown of them, and examples to start from.
(function () {
  "use strict";

  const SPACES = {
    raw: "raw",
    rarity: "weights by rarity",
    sn: "SN",
    whiten: "whitening",
    flow: "flow",
  };
  const EXAMPLES = [
    [
      "Roles swapped",
      "The senator accused the governor of fraud.",
      "The governor accused the senator of fraud.",
    ],
    ["One word turned", "The senate approved the treaty.", "The senate rejected the treaty."],
    [
      "No word in common",
      "It takes me an hour to get to work.",
      "My commute lasts sixty minutes each way.",
    ],
    ["Other words, same matter", "The company sells shoes.", "The firm trades in footwear."],
    [
      "Same frame, other matter",
      "Can someone explain how a mortgage rate lock works?",
      "Can someone explain the rules of cricket to a beginner?",
    ],
    ["Two pictures", "She gave him a 🌹 for his birthday.", "She gave him a 🔪 for his birthday."],
    [
      "Nothing to do with each other",
      "The orchestra tuned up before the concert.",
      "Zinc keeps steel from rusting.",
    ],
  ];
  const WAIT = 150; // milliseconds without a key before the answer is computed

  // element("p", {className: "x"}, "text", other) makes a node with its children.
  function element(tag, settings = {}, ...children) {
    const { attributes = {}, ...properties } = settings;
    const node = Object.assign(document.createElement(tag), properties);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // A share of random pairs in words: never "100 %" for what is only nearly all.
  function percent(share) {
    const value = 100 * share;
    if (share >= 1) return "all";
    if (value > 99.9) return "over 99.9 %";
    if (share <= 0) return "none";
    if (value < 0.1) return "under 0.1 %";
    return `${value.toFixed(value > 99 || value < 1 ? 1 : 0)} %`;
  }

  // A cosine with two decimals, and a true minus.
  function decimals(cosine) {
    const text = cosine.toFixed(2);
    return text === "-0.00" ? "0.00" : text.replace("-", "\u2212");
  }

  // What a reader should know about how the two sentences were read.
  const REMARKS = [
    ["broken", "half a character, which was left out."],
    ["cut", "more pieces than the model takes: only those shown here were read."],
    ["unknown", "pieces that the model does not know. To it these all look alike: [UNK]."],
  ];
  function remarksOn([first, second]) {
    return REMARKS.filter(([what]) => first[what] || second[what]).map(function ([what, words]) {
      if (first[what] && second[what]) return `Both sentences have ${words}`;
      return `The ${first[what] ? "first" : "second"} sentence has ${words}`;
    });
  }

  function pieceList(sentence, name) {
    const items = sentence.pieces.map((piece, k) =>
      element(
        "li",
        { className: piece === "[UNK]" ? "try-it-unknown" : "" },
        piece,
        " ",
        element("small", {}, sentence.weights[k].toFixed(1)),
      ),
    );
    const label = `Pieces of the ${name} sentence, each with its weight by rarity`;
    return element(
      "ul",
      { className: "try-it-pieces", attributes: { "aria-label": label } },
      ...items,
    );
  }

  function table(found) {
    const rows = Object.entries(SPACES).map(([space, name]) => {
      const share = found.shares[space];
      const bar = element("span", {
        className: "try-it-bar",
        attributes: { "aria-hidden": "true", style: `--share: ${share}` },
      });
      return element(
        "tr",
        {},
        element("th", { attributes: { scope: "row" } }, name),
        element("td", {}, decimals(found[space])),
        element("td", {}, percent(share), bar),
      );
    });
    const heads = ["space", "cosine", "random pairs below it"].map((text) =>
      element("th", { attributes: { scope: "col" } }, text),
    );
    return element(
      "table",
      { className: "try-it-cosines" },
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...rows),
    );
  }

  function box(id, label) {
    const area = element("textarea", {
      id,
      rows: 2,
      dir: "auto",
      spellcheck: false,
      autocomplete: "off",
    });
    return [element("label", { htmlFor: id }, label), area];
  }

  // Fill `place` with the boxes, and answer whenever one of them changes.
  function showPair(place, comparer) {
    const [labelOne, one] = box("bertflow-one", "First sentence");
    const [labelTwo, two] = box("bertflow-two", "Second sentence");
    const said = element("p", {
      className: "try-it-said",
      attributes: { role: "status", "aria-live": "polite" },
    });
    const details = element("div");

    function answer() {
      const found = comparer.compare(one.value, two.value);
      const sentences = [one.value, two.value].map(comparer.read);
      const remarks = remarksOn(sentences);
      const lists = ["first", "second"].map((name, k) => pieceList(sentences[k], name));
      if (found.message) {
        said.textContent = [found.message, ...remarks].join(" ");
        details.replaceChildren(...lists);
        return;
      }
      const says = (space) =>
        `${decimals(found[space])}, above ${percent(found.shares[space])} of the random pairs`;
      said.textContent = [
        `Raw cosine ${says("raw")}. After the flow ${says("flow")}.`,
        ...remarks,
      ].join(" ");
      details.replaceChildren(table(found), ...lists);
    }

    let timer = 0;
    const later = function () {
      clearTimeout(timer);
      timer = setTimeout(answer, WAIT);
    };
    one.addEventListener("input", later);
    two.addEventListener("input", later);

    const examples = EXAMPLES.map(([name, first, second]) =>
      element(
        "button",
        {
          type: "button",
          onclick() {
            [one.value, two.value] = [first, second];
            answer();
          },
        },
        name,
      ),
    );
    const group = element(
      "div",
      {
        className: "try-it-examples",
        attributes: { role: "group", "aria-label": "Examples that surprise" },
      },
      ...examples,
    );
    place.replaceChildren(group, labelOne, one, labelTwo, two, said, details);
    [, one.value, two.value] = EXAMPLES[0];
    answer();
    return one;
  }

  Object.assign(window.bertflowTryIt, { SPACES, element, decimals, percent, showPair });
})();
