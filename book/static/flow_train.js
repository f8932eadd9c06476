// Training by maximum likelihood, as train_flow in bertflow_lite/train.py does it: batches in a new
// order for each pass, the gradient cut to length 1, and Adam.
(function () {
  "use strict";
  const flow = window.bertflowFlow;
  const DECAY1 = 0.9, DECAY2 = 0.999, EPSILON = 1e-8, MAX_NORM = 1;

  class Trainer {
    constructor(model, settings) {
      this.model = model;
      this.learningRate = settings.learningRate;
      this.batchSize = settings.batchSize || 128;
      this.random = flow.random(settings.seed || 0);
      this.means = flow.zerosLike(model.parameters);
      this.squares = flow.zerosLike(model.parameters);
      this.steps = 0;
      this.order = [];
    }

    nextBatch(data) {
      const { dim } = this.model, n = data.length / dim, size = Math.min(this.batchSize, n);
      if (this.order.length < size) this.order = this.random.order(n); // a rest is left out
      const batch = new Float64Array(size * dim);
      this.order.splice(0, size).forEach(function (row, i) {
        for (let j = 0; j < dim; j++) batch[i * dim + j] = data[row * dim + j];
      });
      return batch;
    }

    // One step; gives the batch's bits per dimension before it. Numbers that are none stop it
    // with an error, and the weights stay as they were.
    step(batch) {
      const { parameters, gradients } = this.model, { loss } = this.model.lossAndGradient(batch);
      let square = 0;
      gradients.forEach(function (array) {
        array.forEach(function (slope) { square += slope * slope; });
      });
      if (!Number.isFinite(loss) || !Number.isFinite(square)) {
        throw new RangeError("the loss is no longer a number");
      }
      const cut = Math.min(1, MAX_NORM / (Math.sqrt(square) + 1e-6));
      this.steps += 1;
      const rate = this.learningRate / (1 - DECAY1 ** this.steps);
      const correction = Math.sqrt(1 - DECAY2 ** this.steps);
      parameters.forEach((array, p) => {
        const mean = this.means[p], squares = this.squares[p], slopes = gradients[p];
        for (let k = 0; k < array.length; k++) {
          const slope = cut * slopes[k];
          mean[k] = DECAY1 * mean[k] + (1 - DECAY1) * slope;
          squares[k] = DECAY2 * squares[k] + (1 - DECAY2) * slope * slope;
          array[k] -= (rate * mean[k]) / (Math.sqrt(squares[k]) / correction + EPSILON);
        }
      });
      return loss;
    }
  }

  flow.Trainer = Trainer;
})();
