// Drawing on canvas: points, a grid and a density in the plane, and the curve of the bits.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const ORANGE = "#E69F00"; // told apart from blue with any color vision
  const SAMPLE = "#009E73";
  const LINES = { diagonal: "#D55E00", whitening: "#CC79A7" };

  // Text and thin lines in the theme's own color, light or dark.
  function ink() {
    const style = getComputedStyle(document.documentElement);
    return style.getPropertyValue("--pst-color-text-base").trim() || "#333";
  }

  function blue() { // the darker one is too dim on a dark page
    return document.documentElement.dataset.theme === "dark" ? "#56B4E9" : "#0072B2";
  }

  // Make a canvas as sharp as the screen; give its context, cleared, in CSS pixels.
  function begin(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const wanted = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) {
      [canvas.width, canvas.height] = wanted;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  // A square piece of the plane, from -reach to reach both ways.
  class Plane {
    constructor(canvas, reach) {
      this.canvas = canvas;
      this.reach = reach;
    }

    begin() {
      this.context = begin(this.canvas);
      this.scale = this.canvas.clientWidth / (2 * this.reach);
      this.axes();
    }

    px(x) { return (x + this.reach) * this.scale; }
    py(y) { return (this.reach - y) * this.scale; }

    // Where in the plane a pointer is.
    at(event) {
      const box = this.canvas.getBoundingClientRect();
      const scale = box.width / (2 * this.reach);
      return [(event.clientX - box.left) / scale - this.reach,
              this.reach - (event.clientY - box.top) / scale];
    }

    axes() {
      const c = this.context, size = this.canvas.clientWidth;
      c.strokeStyle = ink();
      c.globalAlpha = 0.2;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(this.px(0), 0);
      c.lineTo(this.px(0), size);
      c.moveTo(0, this.py(0));
      c.lineTo(size, this.py(0));
      c.stroke();
      c.globalAlpha = 1;
    }

    points(points, groups, color) {
      const c = this.context, radius = Math.max(1.2, this.canvas.clientWidth / 170);
      c.globalAlpha = 0.75;
      (groups ? [blue(), ORANGE] : [color]).forEach((fill, group) => {
        c.fillStyle = fill;
        c.beginPath();
        for (let i = 0; i < points.length / 2; i++) {
          if (groups && groups[i] !== group) continue;
          const x = this.px(points[2 * i]), y = this.py(points[2 * i + 1]);
          c.moveTo(x + radius, y);
          c.arc(x, y, radius, 0, 2 * Math.PI);
        }
        c.fill();
      });
      c.globalAlpha = 1;
    }

    // Lines of `length` points each, one after the other.
    lines(points, length) {
      const c = this.context;
      c.strokeStyle = ink();
      c.globalAlpha = 0.35;
      c.lineWidth = 0.8;
      c.beginPath();
      for (let i = 0; i < points.length / 2; i++) {
        const x = this.px(points[2 * i]), y = this.py(points[2 * i + 1]);
        if (i % length) c.lineTo(x, y);
        else c.moveTo(x, y);
      }
      c.stroke();
      c.globalAlpha = 1;
    }

    // Circles that hold 39, 86 and 99 percent of a standard Gaussian.
    circles() {
      const c = this.context;
      c.strokeStyle = ink();
      c.globalAlpha = 0.6;
      c.setLineDash([3, 3]);
      [1, 2, 3].forEach((radius) => {
        c.beginPath();
        c.arc(this.px(0), this.py(0), radius * this.scale, 0, 2 * Math.PI);
        c.stroke();
      });
      c.setLineDash([]);
      c.globalAlpha = 1;
    }

    // A density on a grid of side x side cells, top row first: the denser, the bluer.
    density(logDensity, side) {
      const image = new ImageData(side, side);
      const most = logDensity.reduce(function (a, b) { return Math.max(a, b); }, -Infinity);
      for (let k = 0; k < side * side; k++) {
        const share = Math.exp((logDensity[k] - most) / 2); // the root: thin places can be seen
        image.data.set([86, 180, 233, Number.isFinite(share) ? 230 * share : 0], 4 * k);
      }
      const small = document.createElement("canvas");
      small.width = small.height = side;
      small.getContext("2d").putImageData(image, 0, 0);
      this.context.drawImage(small, 0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    }

    cross(x, y) {
      const c = this.context;
      c.strokeStyle = ink();
      c.lineWidth = 2;
      c.beginPath();
      c.moveTo(this.px(x) - 8, this.py(y));
      c.lineTo(this.px(x) + 8, this.py(y));
      c.moveTo(this.px(x), this.py(y) - 8);
      c.lineTo(this.px(x), this.py(y) + 8);
      c.stroke();
    }
  }

  // Bits per dimension against steps. curve: [{step, bits, fresh}]; simple: {diagonal, whitening}.
  function drawCurve(canvas, curve, simple) {
    const c = begin(canvas), width = canvas.clientWidth, height = canvas.clientHeight;
    const left = 34, right = width - 6, top = 8, bottom = height - 22;
    const lines = [simple.diagonal, simple.whitening].filter(Number.isFinite);
    const values = curve.flatMap(function (point) { return [point.bits, point.fresh]; })
      .filter(Number.isFinite);
    // A start far off would press all else into one line: it goes out at the top.
    const ceiling = (lines.length ? Math.max(...lines) : 3) + 1;
    const high = Math.min(ceiling, Math.max(...lines, ...values, 0.5)) + 0.1;
    const low = Math.min(...lines, ...values, high - 1) - 0.1;
    const last = Math.max(100, curve.length ? curve[curve.length - 1].step : 0);
    const px = function (step) { return left + ((right - left) * step) / last; };
    const py = function (bits) {
      return Math.max(top, bottom - ((bottom - top) * (bits - low)) / (high - low));
    };

    c.font = "11px system-ui, sans-serif";
    c.lineWidth = 1;
    c.strokeStyle = c.fillStyle = ink();
    c.textBaseline = "middle";
    c.textAlign = "right";
    const step = (high - low) / (bottom - top) > 0.02 ? 1 : 0.5;
    for (let bits = Math.ceil(low / step) * step; bits <= high; bits += step) {
      c.fillText(bits.toFixed(1), left - 4, py(bits));
      c.globalAlpha = 0.2;
      c.fillRect(left, py(bits), right - left, 1);
      c.globalAlpha = 1;
    }
    c.textBaseline = "top";
    c.textAlign = "left";
    c.fillText("0", left, bottom + 5);
    c.textAlign = "right";
    c.fillText(last + " steps", right, bottom + 5);

    Object.keys(LINES).forEach(function (name, k) {
      if (!Number.isFinite(simple[name])) return;
      c.strokeStyle = LINES[name];
      c.setLineDash(k ? [2, 3] : [7, 4]);
      c.lineWidth = 2;
      stroke(c, [[left, py(simple[name])], [right, py(simple[name])]]);
    });
    [["fresh", [3, 2], 1.5], ["bits", [], 2.5]].forEach(function ([name, dash, thick]) {
      c.strokeStyle = blue();
      c.setLineDash(dash);
      c.lineWidth = thick;
      stroke(c, curve.filter(function (point) { return Number.isFinite(point[name]); })
        .map(function (point) { return [px(point.step), py(point[name])]; }));
    });
    c.setLineDash([]);
  }

  function stroke(context, places) {
    context.beginPath();
    places.forEach(function ([x, y], k) {
      if (k) context.lineTo(x, y);
      else context.moveTo(x, y);
    });
    context.stroke();
  }

  Object.assign(flow, { Plane: Plane, drawCurve: drawCurve, SAMPLE: SAMPLE });
})();
