"use strict";
// What a page does without its timeline: copy buttons, and all details open in print.
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code").textContent;
    try { await navigator.clipboard.writeText(text); } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
let shut = [];
addEventListener("beforeprint", () => {
  shut = [...document.querySelectorAll("details:not([open])")];
  for (const item of shut) item.open = true;
});
addEventListener("afterprint", () => { for (const item of shut) item.open = false; });
