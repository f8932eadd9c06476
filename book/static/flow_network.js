// The network inside a coupling (CouplingNetwork in bertflow_lite/flow.py): three linear maps, an
// inner actnorm and a ReLU after the first two, and a learned scale after the last, which starts
// at zero, so that a new coupling changes nothing.
(function () {
  "use strict";
  const flow = window.bertflowFlow;

  // y = x W^T for a batch; W has a row of `inner` numbers for each of the `outer` outputs.
  function linear(x, weight, inner, outer) {
    const n = x.length / inner, y = new Float64Array(n * outer);
    for (let i = 0; i < n; i++) {
      const row = i * inner;
      for (let o = 0; o < outer; o++) {
        const from = o * inner;
        let sum = 0;
        for (let k = 0; k < inner; k++) sum += weight[from + k] * x[row + k];
        y[i * outer + o] = sum;
      }
    }
    return y;
  }

  // relu(actnorm(x W^T)) in one pass, where nobody will ask for a gradient.
  function linearActnormRelu(x, weight, norm, inner) {
    const outer = norm.dim, n = x.length / inner, y = new Float64Array(n * outer);
    const scale = norm.scales();
    for (let i = 0; i < n; i++) {
      const row = i * inner;
      for (let o = 0; o < outer; o++) {
        const from = o * inner;
        let sum = norm.bias[o];
        for (let k = 0; k < inner; k++) sum += weight[from + k] * x[row + k];
        y[i * outer + o] = Math.max(0, sum * scale[o]);
      }
    }
    return y;
  }

  // Add the gradient at W to dWeight; give the one at x.
  function linearBackward(x, weight, dy, dWeight, inner, outer) {
    const n = x.length / inner, dx = new Float64Array(x.length);
    for (let i = 0; i < n; i++) {
      const row = i * inner;
      for (let o = 0; o < outer; o++) {
        const from = o * inner, slope = dy[i * outer + o];
        if (slope === 0) continue; // behind a ReLU that is shut
        for (let k = 0; k < inner; k++) {
          dWeight[from + k] += slope * x[row + k];
          dx[row + k] += slope * weight[from + k];
        }
      }
    }
    return dx;
  }

  function relu(x) {
    const y = new Float64Array(x.length);
    for (let k = 0; k < x.length; k++) y[k] = Math.max(0, x[k]);
    return y;
  }

  function reluBackward(dy, x) {
    const dx = new Float64Array(x.length);
    for (let k = 0; k < x.length; k++) dx[k] = x[k] > 0 ? dy[k] : 0;
    return dx;
  }

  class CouplingNetwork {
    constructor(inputs, outputs, width, random) {
      const draw = function () { return 0.05 * random.normal(); };
      Object.assign(this, { inputs: inputs, outputs: outputs, width: width });
      this.weight1 = flow.filled(width * inputs, draw);
      this.norm1 = new flow.ActNorm(width, random);
      this.weight2 = flow.filled(width * width, draw);
      this.norm2 = new flow.ActNorm(width, random);
      this.weight3 = new Float64Array(outputs * width);
      this.bias3 = new Float64Array(outputs);
      this.logScale3 = new Float64Array(outputs);
      const own = [this.weight1, this.weight2, this.weight3, this.bias3, this.logScale3];
      this.ownGradients = flow.zerosLike(own);
      this.parameters = [...own, ...this.norm1.parameters, ...this.norm2.parameters];
      this.gradients = [...this.ownGradients, ...this.norm1.gradients, ...this.norm2.gradients];
    }

    scales3() {
      return this.logScale3.map(function (value) {
        return Math.exp(flow.LOG_SCALE_FACTOR * value);
      });
    }

    initialize(x) {
      const hidden1 = linear(x, this.weight1, this.inputs, this.width);
      this.norm1.initialize(hidden1);
      const active1 = relu(this.norm1.forward(hidden1, null, null));
      this.norm2.initialize(linear(active1, this.weight2, this.width, this.width));
    }

    forward(x, cache) {
      const { outputs, width } = this;
      const active2 = cache ? this.hiddenKept(x, cache) : this.hidden(x);
      const y = linear(active2, this.weight3, width, outputs), scale3 = this.scales3();
      for (let k = 0; k < y.length; k++) {
        y[k] = (y[k] + this.bias3[k % outputs]) * scale3[k % outputs];
      }
      if (cache) Object.assign(cache, { x, active2, y });
      return y;
    }

    hidden(x) {
      const active1 = linearActnormRelu(x, this.weight1, this.norm1, this.inputs);
      return linearActnormRelu(active1, this.weight2, this.norm2, this.width);
    }

    // The same, step by step, with what the gradient will need.
    hiddenKept(x, cache) {
      const { inputs, width } = this, inner1 = {}, inner2 = {};
      const normed1 = this.norm1.forward(linear(x, this.weight1, inputs, width), null, inner1);
      const active1 = relu(normed1);
      const hidden2 = linear(active1, this.weight2, width, width);
      const normed2 = this.norm2.forward(hidden2, null, inner2);
      Object.assign(cache, { inner1, normed1, active1, inner2, normed2 });
      return relu(normed2);
    }

    backward(dy, cache) {
      const { inputs, outputs, width } = this;
      const [dWeight1, dWeight2, dWeight3, dBias3, dLogScale3] = this.ownGradients;
      const dLast = new Float64Array(dy.length), scale3 = this.scales3();
      for (let k = 0; k < dy.length; k++) {
        const o = k % outputs;
        dLast[k] = dy[k] * scale3[o];
        dBias3[o] += dLast[k];
        dLogScale3[o] += flow.LOG_SCALE_FACTOR * dy[k] * cache.y[k];
      }
      let d = linearBackward(cache.active2, this.weight3, dLast, dWeight3, width, outputs);
      d = this.norm2.backward(reluBackward(d, cache.normed2), 0, cache.inner2);
      d = linearBackward(cache.active1, this.weight2, d, dWeight2, width, width);
      d = this.norm1.backward(reluBackward(d, cache.normed1), 0, cache.inner1);
      return linearBackward(cache.x, this.weight1, d, dWeight1, inputs, width);
    }
  }

  flow.CouplingNetwork = CouplingNetwork;
})();
