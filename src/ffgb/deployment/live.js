(() => {
  const live = document.getElementById("live"), gone = document.getElementById("gone");
  const settle = (old, now) => {  // what did not change stays: the focus, scrolled tables, opened lists
    if (old.nodeName === "DETAILS" ? now.nodeName === "DETAILS" : false) now.open = old.open;
    if (old.isEqualNode(now)) return;
    if (!old.cloneNode().isEqualNode(now.cloneNode())) return old.replaceWith(now);
    const before = [...old.childNodes], after = [...now.childNodes];
    after.forEach((node, i) => before[i] ? settle(before[i], node) : old.append(node));
    before.slice(after.length).forEach(node => node.remove());
  };
  const look = async () => {
    try {
      if (!document.hidden) {
        const answer = await fetch("body.html", {signal: AbortSignal.timeout(10000)});
        if (!answer.ok) throw new Error(answer.statusText);
        settle(live, new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live"));
        document.title = live.querySelector("h1").textContent + document.title.slice(document.title.lastIndexOf(" –"));
      }
      setTimeout(look, 2000);
    } catch {
      gone.hidden = false;
    }
  };
  setTimeout(look, 2000);
})();
