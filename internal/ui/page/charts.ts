// Draws charts of figures over time. Loaded when the first chart is shown.
import uPlot from "uplot";

export interface Line {
  name: string;
  colour: string; // a variable of main.css
}

export interface Drawing {
  set(times: number[], values: (number | null)[][]): void;
  close(): void;
}

// draw draws a chart in place, as wide as the place is. text formats values.
export async function draw(place: HTMLElement, lines: Line[], text: (v: number) => string): Promise<Drawing> {
  await style();
  const size = () => ({ width: Math.max(200, place.clientWidth), height: 170 });
  let data: uPlot.AlignedData = [[], ...lines.map(() => [])];
  const make = () => {
    const colour = (name: string) => getComputedStyle(place).getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    return new uPlot({
      ...size(),
      legend: { live: true },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, values: (_, splits) => splits.map((at) => new Date(1000 * at).toLocaleTimeString([], { timeStyle: "short" })) },
        { ...axis, size: 72, space: 34, values: (_, splits) => splits.map(text) },
      ],
      series: [
        { label: "Time", value: (_, at) => (at == null ? "" : new Date(1000 * at).toLocaleTimeString()) },
        ...lines.map((l) => ({ label: l.name, stroke: colour(l.colour), width: 2, points: { show: false },
          value: (_: uPlot, v: number | null) => (v == null ? "" : text(v)) })),
      ],
    }, data, place);
  };
  let plot = make();
  const again = () => {
    plot.destroy();
    plot = make();
  };
  const resized = new ResizeObserver(() => plot.setSize(size()));
  resized.observe(place);
  // The colours are those of the theme when the chart was drawn.
  const theme = matchMedia("(prefers-color-scheme: dark)");
  const chosen = new MutationObserver(again);
  theme.addEventListener("change", again);
  chosen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return {
    set(times, values) {
      data = [times, ...values] as uPlot.AlignedData;
      plot.setData(data);
    },
    close() {
      resized.disconnect();
      chosen.disconnect();
      theme.removeEventListener("change", again);
      plot.destroy();
    },
  };
}

let loaded: Promise<unknown> | undefined;

// style loads the style sheet of the charts.
const style = () => (loaded ??= new Promise((done) => {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = "charts.css";
  link.onload = link.onerror = done;
  document.head.append(link);
}));
