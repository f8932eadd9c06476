// What the playground holds: points, a flow, its trainer, and what is known of them.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const COUNT = 500;
  const BATCH = 125;
  const FEWEST = 20; // points that one can learn anything from
  const MOST = 2000;

  class State {
    constructor(settings) {
      this.settings = settings; // shape, depth, width, coupling, actnorm, learningRate, seed
      this.drawn = { points: [], groups: [] };
      this.restart();
    }

    restart() {
      const { settings } = this, own = settings.shape === "your own";
      const made = own ? this.drawn : flow.points(settings.shape, COUNT, settings.seed);
      this.points = Float64Array.from(made.points);
      this.groups = made.groups;
      // Fresh points of the same shape, which the flow never learns from.
      this.fresh = own ? null : flow.points(settings.shape, COUNT, settings.seed + 5000).points;
      this.ready = this.groups.length >= FEWEST;
      this.simple = this.ready ? flow.gaussianBits(this.points) : {};
      this.model = new flow.Flow({
        depth: settings.depth, width: settings.width, coupling: settings.coupling,
        actnorm: settings.actnorm !== "off", seed: settings.seed,
      });
      if (this.ready && settings.actnorm !== "random") this.model.initialize(this.points);
      this.trainer = new flow.Trainer(this.model, {
        learningRate: settings.learningRate, batchSize: BATCH, seed: settings.seed,
      });
      this.curve = [];
      this.failed = false;
      this.look(true);
    }

    // One training step; false when it cannot go on.
    step() {
      if (!this.ready || this.failed) return false;
      this.trainer.learningRate = this.settings.learningRate;
      try {
        this.trainer.step(this.trainer.nextBatch(this.points));
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        this.failed = true;
      }
      return !this.failed;
    }

    // Where the points are in the latent now, and how many bits they and fresh ones cost.
    look(withFresh) {
      if (!this.ready) {
        this.latent = new Float64Array();
        this.bits = NaN;
        return;
      }
      const { z, logDet } = this.model.forward(this.points);
      this.latent = z;
      this.bits = flow.inBits(this.model.logDensity(z, logDet), 2);
      const point = { step: this.trainer.steps, bits: this.bits };
      if (this.fresh && withFresh) point.fresh = this.model.bits(this.fresh);
      const { curve } = this, last = curve[curve.length - 1];
      if (last && last.step === point.step) curve.pop();
      curve.push(point);
    }

    addPoints(x, y, group, count) {
      const random = flow.random(this.drawn.groups.length);
      for (let k = 0; k < count && this.drawn.groups.length < MOST; k++) {
        this.drawn.points.push(x + 0.08 * random.normal(), y + 0.08 * random.normal());
        this.drawn.groups.push(group);
      }
    }

    clear() {
      this.drawn = { points: [], groups: [] };
      this.restart();
    }
  }

  State.FEWEST = FEWEST;
  flow.State = State;
})();
