(() => {
  const lines = [], tip = document.createElement("div"), dots = [];
  tip.id = "tip"; tip.hidden = true; document.body.append(tip);
  for (const svg of document.querySelectorAll("svg")) {  // a title would pop up over the read-out
    const title = svg.querySelector(":scope > title");
    if (title) { svg.setAttribute("aria-label", title.textContent); title.remove(); }
  }
  for (const path of document.querySelectorAll("path.line[data-k]")) {
    const at = new Map(), n = path.getAttribute("d").match(/[0-9.]+/g).map(Number);
    const i = path.dataset.i ? path.dataset.i.split(" ").map(Number) : null;
    for (let j = 0; n.length > 2 * j; j++) at.set(i ? i[j] : j, [n[2 * j], n[2 * j + 1]]);
    lines.push({svg: path.closest("svg"), k: path.dataset.k, at, look: path.classList[1]});
  }
  const clear = () => { tip.hidden = true; for (const dot of dots.splice(0)) dot.remove(); };
  const show = (event, k, i) => {
    clear();
    for (const line of lines) if (line.k === k) if (line.at.has(i)) {
      const [x, y] = line.at.get(i), dot = document.createElementNS(line.svg.namespaceURI, "circle");
      const values = {cx: x, cy: y, r: 3.4, class: "dot " + line.look};
      for (const name in values) dot.setAttribute(name, values[name]);
      line.svg.append(dot); dots.push(dot);
    }
    const table = document.getElementById("rounds" + k);
    if (!table) return;
    const row = table.tBodies[0].rows[i], head = table.tHead.rows[0].cells, name = document.createElement("b");
    name.textContent = (table.dataset.name ? table.dataset.name + ", " : "") + "round " + row.cells[0].textContent;
    tip.replaceChildren(name);
    for (let j = 1; row.cells.length > j; j++) {
      const pair = document.createElement("span");
      for (const cell of [head[j], row.cells[j]]) {
        const text = document.createElement("span");
        text.textContent = cell.textContent; pair.append(text);
      }
      tip.append(pair);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), w = document.documentElement.clientWidth, h = window.innerHeight;
    const right = event.clientX + 16, below = event.clientY + 12;
    tip.style.left = Math.max(4, right + box.width > w ? event.clientX - 16 - box.width : right) + "px";
    tip.style.top = Math.max(4, Math.min(below, h - box.height - 4)) + "px";
  };
  for (const svg of new Set(lines.map(line => line.svg))) {
    svg.addEventListener("pointermove", event => {
      const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = null, least = Infinity;
      for (const line of lines) if (line.svg === svg) for (const [i, [x, y]] of line.at) {
        const far = Math.hypot(x - p.x, (y - p.y) / 2);
        if (least > far) { least = far; best = [line.k, i]; }
      }
      if (best) show(event, ...best);
    });
    svg.addEventListener("pointerleave", clear);
  }
  addEventListener("scroll", clear, {passive: true});
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details.print")) d.open = true; });
})();
