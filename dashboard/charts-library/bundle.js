// The trace types that figures use; scatter is always there. tests/dashboard/test_chart_library.py holds them to it.
const Plotly = require("plotly.js/lib/core");

Plotly.register([
  require("plotly.js/lib/bar"),
  require("plotly.js/lib/heatmap"),
  require("plotly.js/lib/icicle"),
]);

module.exports = Plotly;
