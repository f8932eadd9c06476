// The playground of chapter 5: controls, and the loop that trains and draws.
//
// It trains only between "Play" and "Pause", and it pauses by itself: after a while, when the page
// is hidden, and when it is scrolled out of sight. Who asks for less motion sees no film: training
// then runs through, and the pictures are drawn when it stops.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const STEPS_A_FRAME = 2;
  const STEPS_A_PLAY = 1500;
  const CHOICES = [
    // name, label, values, labels (if not the values), first
    ["shape", "Points", [...flow.shapes, "your own"], null, "two moons"],
    ["coupling", "Coupling", ["additive", "affine"], null, "additive"],
    ["actnorm", "Actnorm", ["data", "random", "off"],
      ["on, start from the data", "on, random start", "off"], "data"],
    ["depth", "Depth", [1, 2, 3, 4, 6, 8, 12], null, 6],
    ["width", "Width", [4, 8, 16, 32], null, 16],
    ["learningRate", "Learning rate", [0.0005, 0.002, 0.005, 0.02, 0.1], null, 0.002],
  ];
  const PANELS = [
    ["data", "The points, and how dense the flow believes they are"],
    ["latent", "Where each point goes, and how the grid bends. Circles: the Gaussian"],
    ["samples", "Noise, sent back through the inverse"],
    ["curve", "Bits per dimension: "],
  ];
  const KEY = [
    ["flow-key-flow", "the flow"], ["flow-key-fresh", "on fresh points"],
    ["flow-key-diagonal", "diagonal Gaussian"], ["flow-key-whitening", "whitening"],
  ];

  const MOVES = {
    ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
  };

  function make(tag, attributes, ...inside) {
    const node = document.createElement(tag);
    Object.entries(attributes || {}).forEach(function ([name, value]) {
      node.setAttribute(name, value);
    });
    node.append(...inside);
    return node;
  }

  class Playground {
    constructor(box) {
      const settings = { seed: 0 };
      CHOICES.forEach(function ([name, , , , first]) { settings[name] = first; });
      this.state = new flow.State(settings);
      this.running = false;
      this.left = 0; // steps until it stops by itself
      this.frames = 0;
      this.stroke = 0;
      this.cross = null;
      this.build(box);
      this.pictures = new flow.Pictures(this.canvases);
      this.show();
      this.listen(box);
    }

    build(box) {
      this.selects = {};
      const controls = make("div", { class: "flow-controls" });
      CHOICES.forEach(([name, label, values, labels, first]) => {
        const select = make("select", { name: name }, ...values.map(function (value, k) {
          return make("option", { value: value }, String(labels ? labels[k] : value));
        }));
        select.value = first;
        this.selects[name] = select;
        controls.append(make("label", {}, label + " ", select));
      });
      this.buttons = {};
      const buttons = make("div", { class: "flow-buttons" });
      [["play", "Play"], ["step", "Step"], ["again", "Again, with another seed"],
        ["clear", "Clear"]].forEach(([name, label]) => {
        this.buttons[name] = make("button", { type: "button", class: "flow-" + name }, label);
        buttons.append(this.buttons[name]);
      });
      this.numbers = make("p", { class: "flow-numbers" });
      // What changes with every frame is not read aloud; this is, when training stops.
      this.spoken = make("p", { class: "flow-spoken", role: "status" });
      this.canvases = {};
      const panels = make("div", { class: "flow-panels" });
      PANELS.forEach(([name, caption]) => {
        const canvas = make("canvas", { role: "img", "aria-label": caption });
        this.canvases[name] = canvas;
        const words = make("figcaption", {}, caption);
        if (name === "curve") {
          KEY.forEach(function ([kind, word]) {
            words.append(make("span", { class: "flow-key " + kind }, word), " ");
          });
        }
        panels.append(make("figure", { class: "flow-" + name }, canvas, words));
      });
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "A flow that trains while you watch");
      box.replaceChildren(controls, buttons, this.numbers, this.spoken, panels);
    }

    listen(box) {
      Object.entries(this.selects).forEach(([name, select]) => {
        select.addEventListener("change", () => this.choose(name, select.value));
      });
      const { play, step, again, clear } = this.buttons;
      play.addEventListener("click", () => (this.running ? this.pause("Paused.") : this.play()));
      step.addEventListener("click", () => {
        this.pause("");
        this.state.step();
        this.show(true);
      });
      again.addEventListener("click", () => {
        this.state.settings.seed += 1;
        this.restart();
      });
      clear.addEventListener("click", () => {
        this.pause("");
        this.state.clear();
        this.show(true);
      });
      this.listenToDrawing(this.canvases.data);
      document.addEventListener("visibilitychange", () => {
        if (document.hidden) this.pause("Paused, since the page was left.");
      });
      window.addEventListener("pagehide", () => this.pause(""));
      new IntersectionObserver((entries) => {
        const last = entries[entries.length - 1];
        if (!last.isIntersecting) this.pause("Paused, since it was out of sight.");
      }).observe(box);
      new ResizeObserver(() => this.redraw()).observe(box);
      // Another theme, and paper: the same pictures in other colors.
      new MutationObserver(() => this.redraw())
        .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
      window.addEventListener("beforeprint", () => this.pause(""));
    }

    listenToDrawing(canvas) {
      const drop = (x, y, count) => {
        this.state.addPoints(x, y, this.stroke % 2, count);
        this.state.restart();
        this.show();
      };
      canvas.addEventListener("pointerdown", (event) => {
        if (!this.drawing()) return;
        this.pause("");
        canvas.setPointerCapture(event.pointerId);
        drop(...this.pictures.data.at(event), 4);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!this.drawing() || !(event.buttons & 1)) return;
        drop(...this.pictures.data.at(event), 4);
      });
      const end = () => {
        if (!this.drawing()) return;
        this.stroke += 1; // the next stroke has the other color
        this.show(true);
      };
      canvas.addEventListener("pointerup", end);
      canvas.addEventListener("pointercancel", end);
      canvas.addEventListener("keydown", (event) => {
        if (!this.drawing()) return;
        const move = MOVES[event.key], reach = flow.Pictures.REACH;
        if (move) {
          this.cross = (this.cross || [0, 0]).map(function (value, k) {
            return Math.max(-reach, Math.min(reach, value + 0.25 * move[k]));
          });
          this.redraw();
        } else if (event.key === " ") {
          this.pause("");
          this.cross = this.cross || [0, 0];
          drop(...this.cross, 8);
          this.show(true);
        } else if (event.key === "Enter") {
          this.stroke += 1;
        } else {
          return;
        }
        event.preventDefault();
      });
      canvas.addEventListener("blur", () => {
        this.cross = null;
        this.redraw();
      });
    }

    drawing() {
      return this.state.settings.shape === "your own";
    }

    choose(name, value) {
      const number = Number(value);
      this.state.settings[name] = Number.isNaN(number) ? value : number;
      if (name === "learningRate") return; // it holds from the next step on
      if (name === "shape") {
        const canvas = this.canvases.data;
        canvas.setAttribute("role", this.drawing() ? "application" : "img");
        if (this.drawing()) canvas.tabIndex = 0;
        else canvas.removeAttribute("tabindex");
        canvas.classList.toggle("flow-drawing", this.drawing());
      }
      this.restart();
    }

    restart() {
      const goOn = this.running;
      this.pause("");
      this.state.restart();
      this.show(true);
      if (goOn) this.play();
    }

    play() {
      if (this.running || !this.state.ready || this.state.failed) return;
      this.running = true;
      this.left = STEPS_A_PLAY;
      this.still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.buttons.play.textContent = "Pause";
      this.spoken.textContent = "Training.";
      this.next();
    }

    next() {
      if (this.still) this.timer = setTimeout(() => this.frame(25));
      else this.timer = requestAnimationFrame(() => this.frame(STEPS_A_FRAME));
    }

    frame(steps) {
      if (!this.running) return;
      for (let k = 0; k < steps; k++) {
        if (!this.state.step()) {
          this.pause("");
          return;
        }
      }
      this.left -= steps;
      this.frames += 1;
      if (!this.still) this.show(false, "", this.frames % 3);
      if (this.left > 0) this.next();
      else this.pause("Stopped by itself. Press Play to go on.");
    }

    pause(words) {
      if (!this.running) return;
      this.running = false;
      if (this.still) clearTimeout(this.timer);
      else cancelAnimationFrame(this.timer);
      this.buttons.play.textContent = "Play";
      this.show(true, words);
    }

    // Look at the flow, draw it, and say what there is to say; aloud, when something has ended.
    show(aloud, words, turn) {
      this.state.look(turn === undefined || turn === 2);
      if (this.state.ready) this.pictures.look(this.state, turn === 2 ? 1 : turn);
      this.redraw();
      const numbers = this.describe();
      this.numbers.textContent = numbers;
      if (turn === undefined) this.describePictures();
      if (aloud) this.spoken.textContent = [words, this.advice()].filter(Boolean).join(" ");
      if (aloud && !this.spoken.textContent) this.spoken.textContent = numbers;
      ["play", "step"].forEach((name) => {
        this.buttons[name].disabled = !this.state.ready || this.state.failed;
      });
      this.buttons.clear.hidden = !this.drawing();
    }

    redraw() {
      this.pictures.draw(this.state, this.drawing() ? this.cross : null);
    }

    describe() {
      const { state } = this;
      if (!state.ready) return `${state.groups.length} points`;
      const round = function (value) {
        return Number.isFinite(value) ? value.toFixed(2).replace("-", "\u2212") : "none";
      };
      const known = state.curve.findLast(function (point) { return "fresh" in point; });
      const fresh = state.fresh ? `, on fresh points ${round(known.fresh)}` : "";
      return `Step ${state.trainer.steps}: ${round(state.bits)} bits per dimension${fresh}. `
        + `Diagonal Gaussian: ${round(state.simple.diagonal)}, `
        + `whitening: ${round(state.simple.whitening)}.`;
    }

    advice() {
      if (this.state.failed) {
        return "The loss is no longer a number. Lower the learning rate and press Again, or choose "
          + "the actnorm that starts from the data.";
      }
      if (this.state.ready) return "";
      return `Draw at least ${flow.State.FEWEST} points in the first picture, with the mouse or a `
        + "finger. With the keyboard: arrow keys move the cross, Space drops points, Enter changes "
        + "their color.";
    }

    describePictures() {
      const { canvases } = this;
      const spot = this.drawing() ? " You can draw here." : "";
      canvases.data.setAttribute("aria-label", `${PANELS[0][1]}.${spot}`);
      canvases.curve.setAttribute("aria-label", `Curve of the bits. ${this.describe()}`);
    }
  }

  // Built when it comes near the view, as the figures are.
  const box = document.getElementById("flow-playground");
  if (!box) return;
  const near = new IntersectionObserver(function (entries) {
    if (!entries.some(function (entry) { return entry.isIntersecting; })) return;
    near.disconnect();
    flow.playground = new Playground(box);
  }, { rootMargin: "100% 0px" });
  near.observe(box);
})();
