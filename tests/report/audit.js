() => {
  const faults = [], width = document.documentElement.clientWidth, seen = (one) => one.checkVisibility({ visibilityProperty: true });
  const name = (one) => `${one.tagName.toLowerCase()}.${one.getAttribute("class") || ""} ${one.textContent.trim().slice(0, 40)}`;
  const fault = (kind, text) => { if (faults.length < 20) faults.push(`${kind}: ${text}`); };
  if (document.documentElement.scrollWidth > width) fault("wide", `the page has ${document.documentElement.scrollWidth} of ${width}`);
  for (const one of document.body.querySelectorAll("*")) {
    if (!seen(one)) continue;
    const box = one.getBoundingClientRect(), style = getComputedStyle(one);
    if (box.width && (box.right > width + 1 || box.left < -1)) fault("wide", `${name(one)} from ${box.left} to ${box.right} of ${width}`);
    if (style.overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1 && !["INPUT", "SELECT"].includes(one.tagName)) fault("cut", `${name(one)} has ${one.scrollWidth} of ${one.clientWidth}`);
    if (one.tagName === "svg" && one.viewBox.baseVal.width) for (const text of one.querySelectorAll("text")) {
      const inner = text.getBoundingClientRect();
      if (inner.left < box.left - 1 || inner.right > box.right + 1 || inner.bottom > box.bottom + 1 || inner.top < box.top - 1) fault("cut", `text of a drawing: ${name(text)}`);
    }
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "TITLE", "title", "NOSCRIPT", "OPTION"].includes(parent.tagName) || !seen(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const rects = [...range.getClientRects()].filter((box) => box.width > 1 && box.height > 1);
    if (rects.length) texts.push({ node, parent, rects });
  }
  const cells = [];
  for (const { node, parent, rects } of texts) {
    const frame = parent.closest("td, th");
    if (frame) { const outer = frame.getBoundingClientRect(); for (const box of rects) if (box.right > outer.right + 1 || box.left < outer.left - 1) fault("cut", `text out of its cell: ${name(parent)}`); }
    for (const box of rects) cells.push({ box, node, parent });
  }
  cells.sort((a, b) => a.box.top - b.box.top);
  cells.forEach(({ box, node, parent }, at) => {
    for (let next = at + 1; next < cells.length && cells[next].box.top < box.bottom - 3; next += 1) {
      const other = cells[next];
      if (other.node === node) continue;
      const across = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left), down = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
      const line = Math.min(box.height, other.box.height);
      if (across > 2 && down > line * 0.35) fault("overlap", `${name(parent)} and ${name(other.parent)}`);
    }
  });
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d", { willReadFrequently: true });
  canvas.width = canvas.height = 40;
  const drawn = (text, font) => { pen.clearRect(0, 0, 40, 40); pen.font = font; pen.fillStyle = "#000"; pen.fillText(text, 4, 30); return pen.getImageData(0, 0, 40, 40).data.join(); };
  const font = `20px ${getComputedStyle(document.body).fontFamily}`, unknown = drawn("\u{10FFFD}", font), blank = drawn(" ", font);
  const letters = new Set(texts.flatMap(({ node }) => [...node.data]).filter((letter) => letter > "~" && letter.trim()));
  for (const letter of letters) { const shape = drawn(letter, font); if (shape === unknown || shape === blank) fault("glyph", `U+${letter.codePointAt(0).toString(16)}`); }
  for (const { node, parent, rects } of texts) {
    if (rects.length < 2) continue;
    const lines = new Map(), range = document.createRange();
    for (let at = 0; at < node.data.length; at += 1) { range.setStart(node, at); range.setEnd(node, at + 1); const box = range.getBoundingClientRect(); if (box.width) lines.set(Math.round(box.top), (lines.get(Math.round(box.top)) || "") + node.data[at]); }
    for (const line of lines.values()) if (/^[^\p{L}\p{N}.,;:)=…'"-]$/u.test(line.trim())) fault("glyph", `${line} alone on a line: ${name(parent)}`);
  }
  const rgba = (colour) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = "#000"; pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; };
  const light = ([red, green, blue]) => [red, green, blue].map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    const box = one.parentElement.matches("g") ? one.parentElement.querySelector("rect") : null;
    if (box) return rgba(getComputedStyle(box).fill);
    for (let place = one; place; place = place.parentElement) { const colour = rgba(getComputedStyle(place).backgroundColor); if (colour[3] === 255) return colour; }
    return [255, 255, 255];
  };
  for (const parent of new Set(texts.map((text) => text.parent))) {
    const style = getComputedStyle(parent), ink = rgba(parent.matches("text, text *") ? style.fill : style.color), pair = [light(ink), light(behind(parent))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) fault("contrast", `${ratio.toFixed(2)} of ${name(parent)}`);
  }
  return faults;
}
