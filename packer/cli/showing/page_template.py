"""The frame of the page that `packer show -o page.html` writes: style and script, which need no network."""

STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { padding: .2em .8em .2em 0; text-align: left; border-bottom: 1px solid #ddd; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
input { font: inherit; padding: .3em; width: 20em; }
#samples { display: flex; flex-wrap: wrap; gap: 1em; margin-top: 1em; }
.sample { border: 1px solid #ddd; border-radius: 6px; padding: .6em; }
.sample h3 { margin: 0 0 .5em; font-size: 14px; max-width: 30em; overflow-wrap: anywhere; }
.cells { display: flex; gap: .6em; align-items: flex-end; flex-wrap: wrap; }
figure { margin: 0; }
figcaption { color: #666; font-size: 11px; }
img { height: 140px; image-rendering: pixelated; display: block; }
canvas { border: 1px solid #eee; cursor: grab; touch-action: none; display: block; }
pre { max-width: 24em; max-height: 140px; overflow: auto; margin: 0; white-space: pre-wrap; font-size: 12px; }
svg { display: block; }
.hidden { display: none; }
"""

SCRIPT = """
"use strict";
function bytes(text) { return Uint8Array.from(atob(text), c => c.charCodeAt(0)); }
function draw(canvas) {
  const { points, colours, count, turn, rise } = canvas.cloud, size = canvas.width;
  const context = canvas.getContext("2d"), image = context.createImageData(size, size);
  image.data.fill(255);
  const depths = new Float32Array(size * size).fill(-Infinity);
  const st = Math.sin(turn), ct = Math.cos(turn), sr = Math.sin(rise), cr = Math.cos(rise);
  const dot = count < 6000 ? 2 : 1;
  for (let i = 0; i < count; i++) {
    const x = points[3 * i], y = points[3 * i + 1], z = points[3 * i + 2];
    const right = -st * x + ct * y, up = -sr * (ct * x + st * y) + cr * z, near = cr * (ct * x + st * y) + sr * z;
    const u = Math.round((right * 0.48 + 0.5) * (size - 1)), v = Math.round((0.5 - up * 0.48) * (size - 1));
    for (let a = u; a < u + dot; a++) for (let b = v; b < v + dot; b++) {
      if (a < 0 || b < 0 || a >= size || b >= size || near < depths[b * size + a]) continue;
      depths[b * size + a] = near;
      for (let c = 0; c < 3; c++) image.data[4 * (b * size + a) + c] = colours[3 * i + c];
    }
  }
  context.putImageData(image, 0, 0);
}
for (const canvas of document.querySelectorAll("canvas")) {
  const points = new Float32Array(bytes(canvas.dataset.points).buffer);
  canvas.cloud = { points, colours: bytes(canvas.dataset.colours), count: points.length / 3, turn: -1, rise: 0.45 };
  draw(canvas);
  let held = null;
  canvas.addEventListener("pointerdown", e => {
    held = [e.clientX, e.clientY];
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", e => {
    if (!held) return;
    canvas.cloud.turn -= (e.clientX - held[0]) / 80;
    canvas.cloud.rise = Math.max(-1.57, Math.min(1.57, canvas.cloud.rise + (e.clientY - held[1]) / 80));
    held = [e.clientX, e.clientY];
    draw(canvas);
  });
}
const search = document.getElementById("search");
search.addEventListener("input", () => {
  const wanted = search.value.toLowerCase();
  let shown = 0;
  for (const sample of document.querySelectorAll(".sample")) {
    const hide = !sample.dataset.name.toLowerCase().includes(wanted);
    sample.classList.toggle("hidden", hide);
    shown += !hide;
  }
  document.getElementById("found").textContent = shown + " shown";
});
"""
