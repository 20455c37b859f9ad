// A pool over time, as Prometheus has it: slices by tier with the price of one more beneath them, and the demand for them.
"use strict";
(() => {
  const TIERS = ["realtime", "nearline", "offline"];
  const WINDOWS_S = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400 };
  const STEPS = 240; // of every window, as the server asks for them
  const ROWS = 12; // of the table
  const EVERY_MS = 15000;
  const NOTHING = "Prometheus has nothing about this pool yet: it must scrape the controllers, port 8081, path /metrics.";

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = (sample) => Date.parse(sample.time) / 1000;
  const number = (value) => (value == null ? "–" : String(Math.round(value * 100) / 100));
  const clock = (chart, times) => times.map((time) => new Date(time * 1000).toTimeString().slice(0, 5));

  const area = (name) => () => ({ stroke: colour(`--${name}`), fill: colour(`--${name}-area`), width: 1 });
  const line = ({ stroke = "--text", ...more } = {}) => () => ({ stroke: colour(stroke), width: 1.5, ...more });
  const stepped = (more) => line({ ...more, paths: uPlot.paths.stepped({ align: 1 }) });
  const tier = (name) => ({ label: name, of: (sample) => sample.tiers[name], style: area(name) });

  // Unknown where nothing was measured.
  const outcome = (name, more) => ({ label: `value ${name}`, of: (sample) => sample.value[name] ?? null, style: stepped(more) });

  // The first `stacked` series of a plot lie one above the other.
  const slices = (title, names, top) => ({ title, label: "slices", height: 260, stacked: names.length, series: [...names, { ...top, style: line({ dash: [5, 4] }) }] });
  const lines = (title, label, ...series) => ({ title, label, height: 130, stacked: 0, series });
  const KINDS = {
    samples: {
      plots: [
        slices("slices by tier", [...TIERS.map(tier), { label: "free", of: (sample) => sample.free, style: area("free") }], { label: "healthy", of: (sample) => sample.healthy }),
        lines("value per second of one more slice", "price", { label: "price", of: (sample) => sample.price, style: stepped({ stroke: "--accent" }) }),
      ],
      more: [],
    },
    demand: {
      plots: [
        slices("slices that would serve the whole demand, by tier", TIERS.map(tier), { label: "allocatable", of: (sample) => sample.allocatable }),
        lines(
          "requests per second, real-time and near-line",
          "requests/s",
          { label: "demand", of: (sample) => sample.demand, style: stepped({ dash: [5, 4] }) },
          { label: "served", of: (sample) => sample.served, style: stepped({ stroke: "--accent" }) },
        ),
        lines(
          "value per second of what clients sent",
          "value/s",
          outcome("served", { stroke: "--accent" }),
          outcome("refused", { dash: [5, 4] }),
          outcome("lost", { stroke: "--error" }),
        ),
      ],
      more: [{ label: "unknown", of: (sample) => sample.unknown }],
    },
  };

  /** With an empty sample in each gap, so that no line is drawn across it. */
  function spaced(samples, step) {
    return samples.flatMap((sample, index) => {
      const gap = index && seconds(sample) - seconds(samples[index - 1]) > 1.5 * step;
      return gap ? [{ at: new Date((seconds(sample) - step) * 1000).toISOString(), empty: true }, sample] : [sample];
    });
  }

  const columns = (plot, samples) => [
    samples.map(seconds),
    ...plot.series.map((series, index) => {
      const summed = plot.series.slice(0, index + 1);
      const value = index < plot.stacked ? (sample) => summed.reduce((sum, one) => sum + one.of(sample), 0) : series.of;
      return samples.map((sample) => (sample.empty ? null : value(sample)));
    }),
  ];

  function axes(label, times) {
    const grid = { stroke: colour("--line"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const common = { stroke: colour("--quiet"), grid, ticks: grid, font, labelFont: font };
    return [{ ...common, size: times ? 30 : 8, values: times ? clock : () => [], space: 60 }, { ...common, size: 60, label, labelSize: 18 }];
  }

  function row(texts, head) {
    const element = document.createElement("tr");
    texts.forEach((text, index) => {
      const cell = document.createElement(head || !index ? "th" : "td");
      cell.textContent = text;
      if (head || !index) cell.scope = head ? "col" : "row";
      if (index) cell.className = "number";
      element.append(cell);
    });
    return element;
  }

  function board(host) {
    const kind = KINDS[host.dataset.chart];
    const pool = host.dataset.pool;
    const period = document.getElementById("window");
    const table = document.getElementById(`${host.dataset.chart}-rows`);
    let charts = [];
    let samples = [];
    let shown = [];
    let asked = 0;

    function clear(text) {
      charts.forEach((chart) => chart.destroy());
      charts = [];
      host.replaceChildren(...(text ? [Object.assign(document.createElement("p"), { className: "note", textContent: text })] : []));
    }

    function draw() {
      if (samples.length < 2) return;
      clear();
      charts = kind.plots.map((plot, place) => {
        const value = (series) => (chart, height, place, index) => {
          const sample = index == null ? samples.at(-1) : shown[index];
          return number(!sample || sample.empty ? null : series.of(sample));
        };
        const options = {
          width: Math.max(host.clientWidth, 240),
          height: plot.height,
          cursor: { sync: { key: `pool ${pool}` }, points: { show: false }, drag: { x: true, y: false } },
          scales: { y: { range: (chart, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
          series: [{ label: "time", value: "{HH}:{mm}:{ss}" }, ...plot.series.map((series) => ({ label: series.label, points: { show: false }, value: value(series), ...series.style() }))],
          bands: plot.series.slice(1, plot.stacked).map((series, index) => ({ series: [index + 2, index + 1], fill: series.style().fill })),
          axes: axes(plot.label, place === kind.plots.length - 1),
        };
        const chart = new uPlot(options, columns(plot, shown), host);
        chart.ctx.canvas.setAttribute("role", "img");
        return chart;
      });
      tell();
    }

    /** The same in words and in numbers, for those who do not see the lines. */
    function tell() {
      kind.plots.forEach((plot, place) => {
        const now = plot.series.map((series) => `${series.label} ${number(series.of(samples.at(-1)))}`).join(", ");
        charts[place].ctx.canvas.setAttribute("aria-label", `ComputePool ${pool} over time, ${plot.title}. Now ${now}. The numbers are in the table below.`);
      });
      const series = [...kind.plots.flatMap((plot) => plot.series), ...kind.more];
      const every = Math.ceil(samples.length / ROWS);
      const rows = samples.filter((_, index) => (samples.length - 1 - index) % every === 0).reverse();
      table.tHead.replaceChildren(row(["time", ...series.map((one) => one.label)], true));
      table.tBodies[0].replaceChildren(...rows.map((sample) => row([sample.time, ...series.map((one) => number(one.of(sample)))], false)));
    }

    async function read() {
      const mine = ++asked;
      try {
        const answer = await fetch(`/api/v1/computepools/${encodeURIComponent(pool)}/${host.dataset.chart}?window=${period.value}`, { headers: { accept: "application/json" } });
        const body = await answer.json();
        if (mine !== asked) return;
        samples = answer.ok ? body : [];
        if (samples.length < 2) return clear(answer.ok ? NOTHING : body.detail);
        shown = spaced(samples, WINDOWS_S[period.value] / STEPS);
        if (!charts.length) return draw();
        charts.forEach((chart, place) => chart.setData(columns(kind.plots[place], shown)));
        tell();
      } catch {
        // The line in the header says that the dashboard does not answer.
      }
    }

    function keep() {
      const address = new URL(location.href);
      address.searchParams.set("window", period.value);
      history.replaceState(null, "", address);
    }

    read();
    setInterval(() => !document.hidden && read(), EVERY_MS);
    period.addEventListener("change", keep);
    period.addEventListener("change", read);
    document.addEventListener("visibilitychange", () => !document.hidden && read());
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
