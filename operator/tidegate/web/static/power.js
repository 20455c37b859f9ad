// A pool over time: its tiers as stacked areas with the price of a slice beneath them, and what is asked of it against what it has.
"use strict";
(() => {
  const TIERS = ["realtime", "nearline", "offline"];
  const MOST = 720;
  const EVERY_MS = 10000;
  const WINDOW_S = 4 * 3600; // as the server shows them when the page is loaded
  const GAP_S = 180; // longer than from one value of Prometheus to the next: nobody knows what was between

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = (each) => Date.parse(each.at) / 1000;
  const number = (value) => (value == null ? "–" : String(Math.round(value * 100) / 100));
  const clock = (chart, at) => at.map((each) => new Date(each * 1000).toTimeString().slice(0, 5));
  const sum = (each, names) => names.reduce((all, name) => all + each[name], 0);

  /** With an empty sample in each gap, so that no line is drawn across it. */
  function spaced(samples) {
    const found = [];
    for (const each of samples) {
      const before = found.at(-1);
      if (before && seconds(each) - seconds(before) > GAP_S) found.push({ at: new Date((seconds(before) + 1) * 1000).toISOString(), gap: true });
      found.push(each);
    }
    return found;
  }

  function axes(label, times) {
    const line = { stroke: colour("--line"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const common = { stroke: colour("--quiet"), grid: line, ticks: line, font, labelFont: font };
    return [{ ...common, size: times ? 30 : 8, values: times ? clock : () => [], space: 60 }, { ...common, size: 60, label, labelSize: 18 }];
  }

  const area = (name) => ({ stroke: colour(`--${name}`), fill: colour(`--${name}-area`), width: 1 });
  const line = (more) => ({ stroke: colour("--text"), width: 1.5, ...more });

  /** Areas one above the other, and one line; `of` says what a series is of a sample. */
  function stacked(names, top) {
    return {
      height: 260,
      room: 1.05,
      least: 1,
      label: "slices",
      bands: () => names.slice(1).map((name, index) => ({ series: [index + 2, index + 1], fill: colour(`--${name}-area`) })),
      series: [
        ...names.map((name, index) => ({ label: name, style: () => area(name), of: (each) => each[name], at: (each) => sum(each, names.slice(0, index + 1)) })),
        { label: top.label, style: () => line({ dash: [5, 4] }), of: top.of, at: top.of },
      ],
    };
  }

  const lines = (label, series) => ({
    height: 130,
    room: 1.1,
    least: 1e-9,
    label,
    bands: () => undefined,
    series: series.map((each) => ({ ...each, at: each.of, style: () => ({ ...each.style(), paths: uPlot.paths.stepped({ align: 1 }) }) })),
  });

  const KINDS = {
    samples: {
      nothing: "There is nothing to draw yet: the dashboard looks every 2 s.",
      plots: [
        stacked([...TIERS, "free"], { label: "healthy", of: (each) => each.healthy }),
        lines("price", [{ label: "price", of: (each) => each.price, style: () => line({ stroke: colour("--accent") }) }]),
      ],
      labels: (pool, last) => [
        `Slices of ComputePool ${pool} by tier over time. Now ${[...TIERS, "free"].map((tier) => `${tier} ${last[tier]}`).join(", ")} of ${last.healthy} healthy. The numbers are in the table below.`,
        "What one more slice would earn, in value per second, over the same time. The numbers are in the table below.",
      ],
    },
    demand: {
      nothing: "There is nothing to draw yet: the allocator's next answers are awaited.",
      plots: [
        stacked(TIERS, { label: "there", of: (each) => each.slices }),
        lines("requests/s", [
          { label: "asked", of: (each) => each.demand, style: () => line({ dash: [5, 4] }) },
          { label: "served", of: (each) => each.serves, style: () => line({ stroke: colour("--accent") }) },
        ]),
      ],
      labels: (pool, last) => [
        `Slices that would serve all that is asked of ComputePool ${pool}, by tier over time, against those there. Now ${TIERS.map((tier) => `${tier} ${last[tier]}`).join(", ")} of ${last.slices} there. The numbers are in the table below.`,
        `Requests per second that are asked of real-time and near-line Inferences, and that are served within the SLO, over the same time. Now ${number(last.serves)} of ${number(last.demand)}. The numbers are in the table below.`,
      ],
    },
  };

  function board(host) {
    const pool = host.dataset.pool;
    const kind = KINDS[host.dataset.chart];
    const address = (most) => `/api/v1/computepools/${encodeURIComponent(pool)}/${host.dataset.chart}?most=${most}`;
    let samples = [];
    let shown = [];
    let charts = [];
    let busy = false;

    const values = (plot) => [shown.map(seconds), ...plot.series.map((series) => shown.map((each) => (each.gap ? null : series.at(each))))];

    function draw() {
      charts.forEach((chart) => chart.destroy());
      charts = [];
      if (samples.length < 2) {
        host.replaceChildren(Object.assign(document.createElement("p"), { className: "nothing", textContent: kind.nothing }));
        return;
      }
      host.replaceChildren();
      const labels = kind.labels(pool, samples.at(-1));
      charts = kind.plots.map((plot, index) => drawn(plot, labels[index], index === kind.plots.length - 1));
    }

    function drawn(plot, label, last) {
      const place = document.createElement("div");
      host.append(place);
      const said = (of) => (chart, value, series, index) => {
        const each = index == null ? samples.at(-1) : shown[index];
        return number(each && !each.gap ? of(each) : null);
      };
      const options = {
        title: "",
        width: Math.max(host.clientWidth, 240),
        height: plot.height,
        cursor: { sync: { key: `pool ${pool}` }, points: { show: false }, drag: { x: true, y: false } },
        legend: { live: true },
        scales: { y: { range: (chart, low, high) => [0, Math.max(high * plot.room, plot.least)] } },
        series: [{ label: "at", value: "{HH}:{mm}:{ss}" }, ...plot.series.map((each) => ({ label: each.label, points: { show: false }, value: said(each.of), ...each.style() }))],
        bands: plot.bands(),
        axes: axes(plot.label, last),
      };
      const chart = new uPlot(options, values(plot), place);
      chart.ctx.canvas.setAttribute("role", "img");
      chart.ctx.canvas.setAttribute("aria-label", label);
      return chart;
    }

    function redraw() {
      shown = spaced(samples);
      if (!charts.length) draw();
      else {
        const labels = kind.labels(pool, samples.at(-1));
        charts.forEach((chart, index) => {
          chart.setData(values(kind.plots[index]));
          chart.ctx.canvas.setAttribute("aria-label", labels[index]);
        });
      }
    }

    async function fetched(most) {
      const answer = await fetch(address(most), { headers: { accept: "application/json" } });
      return answer.ok ? answer.json() : null;
    }

    /** All at first, and where an older one has come; else the last of them alone, which is all that can have come. */
    async function read(whole) {
      if (busy) return;
      busy = true;
      try {
        let found = await fetched(whole ? MOST : 2);
        if (found === null) return;
        const older = !whole && found.length > 0 && (!samples.length || seconds(found[0]) < seconds(samples[0]));
        if (older) found = (await fetched(MOST)) ?? found;
        if (whole || older) samples = found;
        else samples = [...samples, ...found.slice(-1).filter((each) => !samples.length || seconds(each) > seconds(samples.at(-1)))];
        samples = samples.filter((each) => seconds(each) >= seconds(samples.at(-1)) - WINDOW_S);
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
  }

  document.querySelectorAll("[data-chart]").forEach(board);
})();
