// Tiers over time as stacked areas, and beneath them the price of a slice over the same time.
"use strict";
(() => {
  const host = document.getElementById("charts");
  if (!host) return;
  const pool = host.dataset.pool;
  const address = (most) => `/api/v1/computepools/${encodeURIComponent(pool)}/samples?most=${most}`;
  const TIERS = ["realtime", "nearline", "offline", "free"];
  const MOST = 720;
  const EVERY_MS = 10000;
  let samples = [];
  let charts = [];
  let busy = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = (each) => Date.parse(each.at) / 1000;
  const number = (value) => (value == null ? "–" : String(Math.round(value * 100) / 100));

  function stacked() {
    const columns = [samples.map(seconds)];
    let below = samples.map(() => 0);
    for (const tier of TIERS) {
      below = samples.map((each, index) => below[index] + each[tier]);
      columns.push(below);
    }
    columns.push(samples.map((each) => each.healthy));
    return columns;
  }
  const prices = () => [samples.map(seconds), samples.map((each) => each.price)];

  const clock = (chart, at) => at.map((each) => new Date(each * 1000).toTimeString().slice(0, 5));

  function axes(label, times) {
    const line = { stroke: colour("--line"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const common = { stroke: colour("--quiet"), grid: line, ticks: line, font, labelFont: font };
    return [{ ...common, size: times ? 30 : 8, values: times ? clock : () => [], space: 60 }, { ...common, size: 60, label, labelSize: 18 }];
  }

  function draw() {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    if (samples.length < 2) {
      host.replaceChildren(Object.assign(document.createElement("p"), { className: "nothing", textContent: "There is nothing to draw yet: the dashboard looks every 2 s since it began." }));
      return;
    }
    host.replaceChildren();
    const width = Math.max(host.clientWidth, 240);
    const raw = (tier) => (chart, value, series, index) => number(index == null ? samples.at(-1)?.[tier] : samples[index]?.[tier]);
    const series = TIERS.map((tier) => ({
      label: tier,
      stroke: colour(`--${tier}`),
      fill: colour(`--${tier}-area`),
      width: 1,
      points: { show: false },
      value: raw(tier),
    }));
    const cursor = { sync: { key: `pool ${pool}` }, points: { show: false }, drag: { x: true, y: false } };
    charts = [
      plot({
        title: "",
        width,
        height: 260,
        cursor,
        scales: { y: { range: (chart, low, high) => [0, Math.max(high * 1.05, 1)] } },
        series: [
          { label: "at", value: "{HH}:{mm}:{ss}" },
          ...series,
          { label: "healthy", stroke: colour("--text"), width: 1.5, dash: [5, 4], points: { show: false }, value: raw("healthy") },
        ],
        bands: [2, 3, 4].map((upper) => ({ series: [upper, upper - 1], fill: colour(`--${TIERS[upper - 1]}-area`) })),
        axes: axes("slices", false),
      }, stacked(), `Slices of ComputePool ${pool} by tier over time. ${summary()} The numbers are in the table below.`),
      plot({
        width,
        height: 130,
        cursor,
        scales: { y: { range: (chart, low, high) => [0, Math.max(high * 1.1, 1e-9)] } },
        series: [
          { label: "at", value: "{HH}:{mm}:{ss}" },
          { label: "price", stroke: colour("--accent"), width: 1.5, points: { show: false }, value: raw("price"), paths: uPlot.paths.stepped({ align: 1 }) },
        ],
        axes: axes("price", true),
      }, prices(), "What one more slice would earn, in value per second, over the same time. The numbers are in the table below."),
    ];
  }

  function plot(options, data, label) {
    const place = document.createElement("div");
    host.append(place);
    const chart = new uPlot({ ...options, legend: { live: true } }, data, place);
    chart.ctx.canvas.setAttribute("role", "img");
    chart.ctx.canvas.setAttribute("aria-label", label);
    return chart;
  }

  function summary() {
    const last = samples.at(-1);
    return `Now ${TIERS.map((tier) => `${tier} ${last[tier]}`).join(", ")} of ${last.healthy} healthy.`;
  }

  function redraw() {
    if (!charts.length) draw();
    else {
      charts[0].setData(stacked());
      charts[1].setData(prices());
    }
  }

  /** All at first; then the last of them alone, which is all that can have come. */
  async function read(whole) {
    if (busy) return;
    busy = true;
    try {
      const answer = await fetch(address(whole ? MOST : 2), { headers: { accept: "application/json" } });
      if (!answer.ok) return;
      const found = await answer.json();
      if (whole) samples = found;
      else samples = [...samples, ...found.slice(-1).filter((each) => !samples.length || seconds(each) > seconds(samples.at(-1)))].slice(-7200);
      redraw();
    } catch {
      // The line in the header says that nobody answers.
    } finally {
      busy = false;
    }
  }

  read(true);
  setInterval(() => !document.hidden && read(false), EVERY_MS);
  document.addEventListener("htmx:sseMessage", () => !document.hidden && read(false));
  document.addEventListener("visibilitychange", () => !document.hidden && read(true));
  document.addEventListener("tidegate:theme", draw);
  let resized = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => {
      for (const chart of charts) {
        if (Math.abs(chart.width - host.clientWidth) > 1 && host.clientWidth) chart.setSize({ width: host.clientWidth, height: chart.height });
      }
    });
  }).observe(host);
})();
