"use strict";
// What every page does: copy buttons, and all details open in print. The timeline's script follows it and copies by it.
async function copy(text, button) { // to the clipboard; the button says so for a moment
  const label = button.textContent;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  button.textContent = "Copied"; setTimeout(() => { button.textContent = label; }, 1500);
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => copy(button.parentElement.querySelector("code").textContent, button));
}
let shut = [];
addEventListener("beforeprint", () => {
  shut = [...document.querySelectorAll("details:not([open])")];
  for (const item of shut) item.open = true;
});
addEventListener("afterprint", () => { for (const item of shut) item.open = false; });
