// The four pictures of the playground, drawn from its state.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const REACH = 4; // of all three planes, so that they can be compared
  const GRID = 13; // lines each way
  const ALONG = 21; // points on a line
  const SIDE = 32; // cells of the density, each way
  const SAMPLES = 500;

  function gridLines() {
    const points = [];
    for (let line = 0; line < GRID; line++) {
      const fixed = -3 + (6 * line) / (GRID - 1);
      [true, false].forEach(function (across) {
        for (let k = 0; k < ALONG; k++) {
          const moving = -3 + (6 * k) / (ALONG - 1);
          points.push(...(across ? [moving, fixed] : [fixed, moving]));
        }
      });
    }
    return Float64Array.from(points);
  }

  function cells() { // middles of the cells, top row first
    const points = [];
    for (let row = 0; row < SIDE; row++) {
      for (let column = 0; column < SIDE; column++) {
        points.push(((column + 0.5) / SIDE) * 2 * REACH - REACH);
        points.push(REACH - ((row + 0.5) / SIDE) * 2 * REACH);
      }
    }
    return Float64Array.from(points);
  }

  class Pictures {
    constructor(canvases) { // data, latent, samples, curve
      this.data = new flow.Plane(canvases.data, REACH);
      this.latent = new flow.Plane(canvases.latent, REACH);
      this.samples = new flow.Plane(canvases.samples, REACH);
      this.curve = canvases.curve;
      this.grid = gridLines();
      this.cells = cells();
      const random = flow.random(99); // always the same noise, so that the picture does not flicker
      this.noise = Float64Array.from({ length: 2 * SAMPLES }, random.normal);
    }

    // What costs the most takes turns while a film runs; without a turn, all of it is new.
    look({ model }, turn) {
      if (turn !== 1) this.logDensity = model.logProb(this.cells);
      if (turn !== 0) this.drawn = model.inverse(this.noise);
      this.bent = model.forward(this.grid).z;
    }

    draw(state, cross) {
      this.data.begin();
      if (state.ready) this.data.density(this.logDensity, SIDE);
      this.data.points(state.points, state.groups);
      if (cross) this.data.cross(cross[0], cross[1]);
      this.latent.begin();
      if (state.ready) this.latent.lines(this.bent, ALONG);
      this.latent.circles();
      this.latent.points(state.latent, state.groups);
      this.samples.begin();
      if (state.ready) this.samples.points(this.drawn, null, flow.SAMPLE);
      flow.drawCurve(this.curve, state.curve, state.simple);
    }
  }

  Pictures.REACH = REACH;
  flow.Pictures = Pictures;
})();
